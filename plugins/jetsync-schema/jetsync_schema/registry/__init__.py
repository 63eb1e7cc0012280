"""
Where contracts come from, and which one applies to a subject.
"""
