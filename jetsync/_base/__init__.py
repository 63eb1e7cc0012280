"""
What every other folder uses: deadlines, locks, logs, checks of fields.
"""
