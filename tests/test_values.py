"""Values: frozen, checked when they are made, and with errors in one form."""

import pickle

import pytest
from pydantic import Field, field_validator, model_validator

from hybridrt.values import Value


class Inner(Value):
    size: int


class Example(Value):
    """One field of each kind."""

    count: int = Field(default=1, ge=1)
    share: float = 0.5
    names: tuple[str, ...] = ()
    inner: Inner | None = None

    @field_validator("names")
    @classmethod
    def _short(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if any(len(name) > 3 for name in names):
            raise ValueError("Names should be short")
        return names

    @model_validator(mode="after")
    def _together(self) -> "Example":
        if self.count > 10 and self.share > 0.9:
            raise ValueError("count=11 is too many for share=1.0")
        return self


class Required(Value):
    size: int


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"count": 0}, "Example.count=0: input should be greater than or equal to 1"),
        ({"count": "1"}, "Example.count='1': input should be a valid integer"),
        ({"count": True}, "Example.count=True: input should be a valid integer"),
        ({"names": ("long name",)}, "Example.names=('long name',): names should be short"),
        ({"names": ("a", 5)}, "Example.names.1=5: input should be a valid string"),
        ({"other": 5}, "Example.other=5: there is no such field"),
        ({"count": 11, "share": 1.0}, "Example: count=11 is too many for share=1.0"),
    ],
)
def test_an_error_names_the_field_the_value_and_what_is_right(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError) as refusal:
        Example(**fields)
    assert str(refusal.value) == message
    assert type(refusal.value) is ValueError and refusal.value.__cause__ is None


def test_every_wrong_field_has_a_line() -> None:
    with pytest.raises(ValueError, match=r"^Example\.count=0: .*\nExample\.other=5: .*$"):
        Example(count=0, other=5)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ValueError, match=r"^Required\.size: missing; this field is required$"):
        Required()


def test_values_are_frozen_equal_by_their_fields_and_pickle() -> None:
    value = Example(count=2, inner=Inner(size=3))
    with pytest.raises(ValueError, match="frozen"):
        value.count = 3  # pyright: ignore[reportAttributeAccessIssue]
    assert value == Example(count=2, inner=Inner(size=3)) != Example(count=3)
    assert pickle.loads(pickle.dumps(value)) == value


def test_a_whole_number_is_a_float_too() -> None:
    assert Example(share=1).share == 1.0
