"""The shop's tables for SQLAlchemy."""

from __future__ import annotations

import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tests.process.shops.order import URL


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "accounts"
    name: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


class Placed(Base):
    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]


class Ledger(Base):
    __tablename__ = "ledger"
    number: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str]
    cents: Mapped[int]


class Shipment(Base):
    __tablename__ = "shipments"
    number: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str]


def sqlalchemy_url(driver: str) -> sqlalchemy.URL:
    return sqlalchemy.make_url(URL).set(drivername=f"postgresql+{driver}")
