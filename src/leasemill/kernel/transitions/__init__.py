"""The transitions that verbs share: how an execution, a lane, a group or a key passes from one state to the next.

A verb decides and names events; the functions here are the parts that more than one verb decides or applies.
"""
