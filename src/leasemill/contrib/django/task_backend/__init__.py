"""`django.tasks` on Leasemill: of Django 6, or of the backport `django-tasks` for Django 5.2.

Not called `tasks`: a module of that name is imported in every installed app, and the backport may not be there.
"""
