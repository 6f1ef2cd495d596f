from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations: ClassVar = [
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("article", models.CharField(max_length=50, unique=True)),
                ("state", models.CharField(max_length=20, default="new")),
                ("shipped", models.IntegerField(default=0)),
            ],
        ),
    ]
