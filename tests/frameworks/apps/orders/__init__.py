"""
A Django application that stores orders.
"""
