"""
An example with real data: all flights that left New York in 2013, through a server and back.
"""
