//! The report on tied parameters for the user.

use std::fmt;

/// One copy of a tied parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedCopy {
    /// The stage that holds it.
    pub stage: usize,
    /// The rank that holds the stage (on the first route).
    pub rank: usize,
    /// Its path in the stage's module.
    pub path: String,
}

/// A tied parameter as it was found, and how its gradients are summed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedReport {
    /// The declaration's name.
    pub name: String,
    /// The shape of every copy; of the whole parameter if ranks have pieces.
    pub shape: Vec<usize>,
    /// Bytes of one copy.
    pub bytes: usize,
    /// The copies, in model order. All start with the first one's value.
    pub copies: Vec<SharedCopy>,
    /// The pipeline ranks that reduce it, ascending; fewer than two if no reduction is needed.
    pub ranks: Vec<usize>,
    /// Names of the tied parameters reduced in the same call, including this one.
    pub reduced_with: Vec<String>,
    /// True if copies get gradients.
    pub trainable: bool,
}

impl fmt::Display for SharedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {:?}, {} bytes, on", self.name, self.shape, self.bytes)?;
        for (place, copy) in self.copies.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma} stage {} (`{}`, rank {})", copy.stage, copy.path, copy.rank)?;
        }
        match (self.trainable, self.copies.len(), self.ranks.len()) {
            (false, ..) => f.write_str(": frozen, nothing to sum"),
            (_, 1, _) => f.write_str(": one copy, nothing to sum"),
            (_, _, 0 | 1) => f.write_str(": gradients are added up on the rank"),
            _ => {
                write!(f, ": gradients are summed once a step over ranks {:?}", self.ranks)?;
                match self.reduced_with.len() {
                    0 | 1 => Ok(()),
                    _ => {
                        let others = self.reduced_with.iter().filter(|name| **name != self.name);
                        let others: Vec<String> = others.map(|name| format!("`{name}`")).collect();
                        write!(f, ", together with {}", others.join(", "))
                    }
                }
            }
        }
    }
}

impl SharedReport {
    /// Returns true if it has a copy in this stage at this path.
    pub(crate) fn holds(&self, stage: usize, path: &str) -> bool {
        self.copies.iter().any(|copy| copy.stage == stage && copy.path == path)
    }
}
