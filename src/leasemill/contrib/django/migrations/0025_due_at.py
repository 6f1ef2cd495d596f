from leasemill.contrib.django.operations import store_migration

Migration = store_migration(__name__, "0024_unique_queues")
