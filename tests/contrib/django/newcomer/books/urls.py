from django.urls import path

from tests.contrib.django.newcomer.books import views

urlpatterns = [
    path("order/<str:title>", views.order),
    path("advertise/<str:title>", views.advertise),
    path("order-async/<str:title>", views.order_async),
    path("wait/<str:title>", views.wait),
]
