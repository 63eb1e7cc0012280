"""
The pages of the site.
"""

from django.urls import path
from orders import create_order

urlpatterns = [path("orders/<str:region>", create_order)]
