//! Enums whose values have names, in texts, in reports and on the command line.
//!
//! Guarantees: no value is missing from `ALL`, and none is without a name.

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
