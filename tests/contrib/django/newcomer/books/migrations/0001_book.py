from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations: ClassVar = [
        migrations.CreateModel(
            "Book",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("title", models.CharField(max_length=50)),
                ("state", models.CharField(max_length=20, default="new")),
            ],
        ),
    ]
