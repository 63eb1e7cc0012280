"""
The operations that are traced and measured: publishing, receiving and processing.
"""
