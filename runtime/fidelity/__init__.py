"""How true a card is: what its emulation predicts beside what others measured on the hardware it stands for."""
