//! What may cross a stage boundary: tensors of any rank and kind, plain numbers and strings; alone, in tuples,
//! options or vectors, or in a user's own structs and enums.
//!
//! Guarantees: [`Boundary::from_payload`] gives back the value that [`Boundary::into_payload`] was given.
//!
//! ```
//! use burn::tensor::{Int, Tensor};
//! use burn_pipeline::boundary;
//!
//! struct Hidden { x: Tensor<3>, positions: Tensor<2, Int> }
//! boundary!(struct Hidden { x, positions });
//!
//! enum Signal { Tokens(Tensor<2, Int>), Hidden(Tensor<3>) }
//! boundary!(enum Signal { Tokens(a), Hidden(a) });
//! ```

use super::any_tensor::AnyTensor;
use super::host_value::HostValue;
use super::parts::Payload;
use super::payload_reader::{BoundaryError, PayloadReader};
use burn::tensor::Tensor;
use burn::tensor::kind::Basic;

/// The kind of a tensor of any rank and type.
pub(super) const ANY_TENSOR: &str = "any tensor";

/// A value that crosses stage boundaries.
///
/// A type of your own that does not implement it is a compile error, which names [`boundary!`](crate::boundary):
///
/// ```compile_fail,E0277
/// # use burn::tensor::Tensor;
/// # use burn_pipeline::stage::{PayloadSpec, Boundary};
/// struct Hidden { x: Tensor<3> }
/// fn spec(hidden: Hidden) -> PayloadSpec {
///     PayloadSpec::of(hidden)
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot cross a stage boundary",
    label = "not a `Boundary`",
    note = "for a struct or an enum of tensors write `burn_pipeline::boundary!(struct Name {{ field, field }});` or \
            `boundary!(enum Name {{ Variant(a), Variant(b) }});`",
    note = "tensors, `f64`, `i64`, `usize`, `bool` and `String`, and tuples, options and vectors of such values, \
            cross as they are"
)]
pub trait Boundary: Sized + Send + 'static {
    /// Appends the value's parts.
    fn write(self, payload: &mut Payload);

    /// Reads the value's parts from the front.
    ///
    /// # Errors
    /// Returns [`BoundaryError`] if the parts are not those of such a value.
    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError>;

    /// The kinds of its parts, in order. A stage's output is compared with the next one's input by them before
    /// anything runs. By default the name of the type.
    #[doc(hidden)]
    fn kinds() -> Vec<String> {
        vec![std::any::type_name::<Self>().to_owned()]
    }

    /// The value as a payload.
    fn into_payload(self) -> Payload {
        let mut payload = Payload::default();
        self.write(&mut payload);
        payload
    }

    /// Reads the value that makes up a whole payload.
    ///
    /// # Errors
    /// Returns [`BoundaryError`] if the parts are not those of such a value.
    fn from_payload(payload: Payload) -> Result<Self, BoundaryError> {
        let mut reader = PayloadReader::new(payload);
        let value = Self::read(&mut reader)?;
        match reader.left() {
            0 => Ok(value),
            left => Err(BoundaryError::LeftOver { left }),
        }
    }
}

impl<const D: usize, K: Basic + 'static> Boundary for Tensor<D, K> {
    fn write(self, payload: &mut Payload) {
        payload.push_tensor(AnyTensor::new(self));
    }

    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
        payload.tensor()
    }
}

impl Boundary for AnyTensor {
    fn write(self, payload: &mut Payload) {
        payload.push_tensor(self);
    }

    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
        payload.any_tensor()
    }

    fn kinds() -> Vec<String> {
        vec![ANY_TENSOR.to_owned()]
    }
}

macro_rules! host_values {
    ($($type:ty => $variant:ident, $expected:literal;)*) => {$(
        impl Boundary for $type {
            fn write(self, payload: &mut Payload) {
                payload.push_host(HostValue::$variant(self));
            }

            fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
                match payload.host($expected)? {
                    HostValue::$variant(value) => Ok(value),
                    _ => Err(BoundaryError::Structure { expected: $expected }),
                }
            }
        }
    )*};
}

host_values! {
    f64 => Float, "a plain number (f64)";
    i64 => Int, "a plain integer (i64)";
    bool => Bool, "a plain bool";
    String => Text, "a string";
}

/// Crosses as an `i64`. A value above [`i64::MAX`] is refused when it is read.
impl Boundary for usize {
    fn write(self, payload: &mut Payload) {
        (self as u64).cast_signed().write(payload);
    }

    fn kinds() -> Vec<String> {
        i64::kinds()
    }

    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
        let refused = BoundaryError::Structure { expected: "a plain integer that is not negative (usize)" };
        Self::try_from(i64::read(payload)?).map_err(|_| refused)
    }
}

impl<T: Boundary> Boundary for Option<T> {
    fn write(self, payload: &mut Payload) {
        payload.push_tag(usize::from(self.is_some()));
        if let Some(value) = self {
            value.write(payload);
        }
    }

    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
        match payload.tag(2, "whether an optional value is there")? {
            0 => Ok(None),
            _ => T::read(payload).map(Some),
        }
    }

    fn kinds() -> Vec<String> {
        vec![format!("Option<{}>", T::kinds().join(", "))]
    }
}

impl<T: Boundary> Boundary for Vec<T> {
    fn write(self, payload: &mut Payload) {
        payload.push_tag(self.len());
        self.into_iter().for_each(|value| value.write(payload));
    }

    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
        let length = payload.tag(usize::MAX, "the length of a list")?;
        (0..length).map(|_| T::read(payload)).collect()
    }

    fn kinds() -> Vec<String> {
        vec![format!("Vec<{}>", T::kinds().join(", "))]
    }
}

macro_rules! tuples {
    ($(($($name:ident)*))*) => {$(
        impl<$($name: Boundary),*> Boundary for ($($name,)*) {
            #[allow(non_snake_case, reason = "the type's name serves as the variable's")]
            fn write(self, payload: &mut Payload) {
                let _ = &payload;
                let ($($name,)*) = self;
                $($name.write(payload);)*
            }

            fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
                let _ = &payload;
                Ok(($($name::read(payload)?,)*))
            }

            fn kinds() -> Vec<String> {
                let kinds: Vec<Vec<String>> = vec![$($name::kinds()),*];
                kinds.concat()
            }
        }
    )*};
}

tuples! { () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) }

/// The kinds of a field; [`boundary!`](crate::boundary) knows only its name.
#[doc(hidden)]
pub fn kinds_of_field<S, T: Boundary>(_: fn(S) -> T) -> Vec<String> {
    T::kinds()
}

/// Implements [`Boundary`](crate::payload::Boundary) for a struct with named fields, or for an enum whose variants hold
/// one value each. A variant with several values holds a tuple: `Decoding((Tensor<3>, Tensor<3>))`. The names in
/// parentheses are arbitrary.
#[macro_export]
macro_rules! boundary {
    (struct $name:ident { $($field:ident),+ $(,)? }) => {
        impl $crate::payload::Boundary for $name {
            fn write(self, payload: &mut $crate::payload::Payload) {
                $($crate::payload::Boundary::write(self.$field, payload);)+
            }

            fn read(
                payload: &mut $crate::payload::PayloadReader,
            ) -> ::core::result::Result<Self, $crate::payload::BoundaryError> {
                ::core::result::Result::Ok(Self { $($field: $crate::payload::Boundary::read(payload)?),+ })
            }

            fn kinds() -> ::std::vec::Vec<::std::string::String> {
                [$($crate::payload::kinds_of_field(|value: Self| value.$field)),+].concat()
            }
        }
    };
    (enum $name:ident { $($variant:ident ( $value:ident )),+ $(,)? }) => {
        impl $crate::payload::Boundary for $name {
            fn write(self, payload: &mut $crate::payload::Payload) {
                let mut _tag = 0;
                $(
                    if let Self::$variant(_) = &self {
                        payload.push_tag(_tag);
                    }
                    _tag += 1;
                )+
                match self {
                    $(Self::$variant($value) => $crate::payload::Boundary::write($value, payload),)+
                }
            }

            fn read(
                payload: &mut $crate::payload::PayloadReader,
            ) -> ::core::result::Result<Self, $crate::payload::BoundaryError> {
                let variants = [$(::core::stringify!($variant)),+].len();
                let tag = payload.tag(variants, ::core::concat!("a variant of ", ::core::stringify!($name)))?;
                let mut _variant = 0;
                $(
                    if tag == _variant {
                        return ::core::result::Result::Ok(Self::$variant($crate::payload::Boundary::read(payload)?));
                    }
                    _variant += 1;
                )+
                ::core::result::Result::Err($crate::payload::BoundaryError::Structure {
                    expected: ::core::concat!("a variant of ", ::core::stringify!($name)),
                })
            }
        }
    };
}
