from django.apps import AppConfig


class BooksConfig(AppConfig):
    name = "tests.contrib.django.newcomer.books"
    label = "books"
