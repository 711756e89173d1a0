"""What a card can be told to do: element types, instructions, programs. Imports nothing else of siltwin."""
