"""
The pages of the Django site.
"""

from clients import store
from django.http import HttpResponse
from django.urls import path


def order(request, data):
    """
    Store an order.
    """
    return HttpResponse(store(data))


urlpatterns = [path("<str:data>", order)]
