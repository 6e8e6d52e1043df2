"""What a run tells while it goes on: its events, the alarms that read them, and who gets a copy."""
