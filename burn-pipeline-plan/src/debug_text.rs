//! Makes `Debug` of errors, and of the parts of a plan that have a text form, equal to `Display`.
//!
//! Guarantees: the `Debug` of each public error of these crates is its `Display`. A program whose `main` returns an
//! error prints `Debug`, in which a message that says what to do would be lost among names of fields and escaped line
//! ends. `matches!` still sees the fields.

/// Implements `Debug` by `Display`.
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
