"""siltwin: a hardware emulator and digital twin of AI accelerator cards."""
