from leasemill.contrib.django.operations import store_migration

Migration = store_migration(__name__, "0022_function_rights")
