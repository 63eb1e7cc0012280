"""
Object stores: data of any size in chunks, with links, watches and their configuration.
"""
