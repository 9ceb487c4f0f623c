//! Amounts of seconds, bytes or FLOPs: their check, and their median over several measurements.

/// Returns true if a number is finite and not negative.
pub(super) fn is_amount(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

/// Returns true if a value is the default of its type and can be left out of JSON.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The middle value, or the lower of the two middle ones.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

/// A number of costs, which may be absent.
pub(super) trait Number: Sized {
    /// The median of those that are present.
    fn median(numbers: impl Iterator<Item = Self>) -> Self;
}

impl Number for f64 {
    fn median(numbers: impl Iterator<Item = Self>) -> Self {
        median(numbers).unwrap_or(0.0)
    }
}

impl Number for Option<f64> {
    fn median(numbers: impl Iterator<Item = Self>) -> Self {
        median(numbers.flatten())
    }
}

/// Gives a type of costs `fault`, which checks the listed fields, and, if `of any sign` lists all its other fields,
/// `median`.
macro_rules! amounts {
    ($costs:ident: $($field:ident),+) => {
        impl $costs {
            /// The first number that is negative, infinite or NaN, as its name and its text.
            pub(super) fn fault(&self) -> Option<(&'static str, String)> {
                use $crate::cost::amount::is_amount;
                let numbers = [$((stringify!($field), Option::<f64>::from(self.$field).unwrap_or(0.0))),+];
                let fault = numbers.into_iter().find(|&(_, value)| !is_amount(value));
                fault.map(|(field, value)| (field, value.to_string()))
            }
        }
    };
    ($costs:ident: $($field:ident),+; of any sign: $($signed:ident),*) => {
        $crate::cost::amount::amounts!($costs: $($field),+);

        impl $costs {
            pub(super) fn median(costs: &[Self]) -> Self {
                use $crate::cost::amount::Number;
                Self {
                    $($field: Number::median(costs.iter().map(|cost| cost.$field)),)+
                    $($signed: Number::median(costs.iter().map(|cost| cost.$signed)),)*
                }
            }
        }
    };
}

pub(super) use amounts;
