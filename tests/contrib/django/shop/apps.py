from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "tests.contrib.django.shop"
    label = "shop"
