"""The training monitor: quantities of every head, alarms and logs."""
