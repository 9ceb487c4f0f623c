//! Enums whose values have names, in texts, in reports and on the command line; and types whose `Debug` is their text.
//!
//! Guarantees: no value is missing from `ALL`, and none is without a name. The `Debug` of each public error of these
//! crates is its `Display`: a program whose `main` returns an error prints `Debug`, in which a message that says what
//! to do would be lost among names of fields and escaped line ends. `matches!` still sees the fields.

/// Defines an enum of unit variants with a name each: `ALL`, the named method, and a `Display` that keeps the width
/// of a format.
///
/// ```text
/// named! {
///     /// Documentation of the type, and its derives.
///     pub enum Side, name {
///         /// Documentation of the value.
///         Left => "left",
///     }
/// }
/// ```
macro_rules! named {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $type:ident, $name:ident {
            $($(#[$documentation:meta])* $value:ident => $text:literal,)+
        }
    ) => {
        $(#[$attribute])*
        $visibility enum $type {
            $($(#[$documentation])* $value,)+
        }

        impl $type {
            /// All values, in declaration order.
            $visibility const ALL: [Self; [$($text),+].len()] = [$(Self::$value),+];

            /// The text of this value in plans, in reports and on the command line.
            $visibility const fn $name(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.$name())
            }
        }
    };
}

pub(crate) use named;

/// Implements `Debug` by `Display`, for errors and for the parts of a plan that have a text form.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_text {
    ($type:ty) => {
        impl ::std::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }
    };
}
