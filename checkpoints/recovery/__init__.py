"""The steps that recover OUTPUT after a crash, not the state files that they rely on."""
