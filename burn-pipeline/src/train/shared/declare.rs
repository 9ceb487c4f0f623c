//! The declaration of a tied parameter.

/// A tied parameter: several stages hold it, and it is declared once for all of them.
///
/// A path names a place in a stage's module as Burn visits it: field names and list indices joined by dots; `*` stands
/// for any one of them. A stage without a parameter there does not hold it.
///
/// ```
/// use burn_pipeline::train::SharedParameter;
/// // The input embedding and the head's weight are tied.
/// let tied = SharedParameter::new("embedding").at("embed.token.weight").at("head.weight");
/// assert!(tied.holds("head.weight") && !tied.holds("head.bias"));
/// // A bias that every block of every stage reads.
/// let bias = SharedParameter::new("positions").at("blocks.*.bias");
/// assert!(bias.holds("blocks.3.bias") && !bias.holds("blocks.3.norm.bias"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedParameter {
    name: String,
    paths: Vec<String>,
}

impl SharedParameter {
    /// Declares a tied parameter with this name (for messages and reports), without paths yet.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), paths: Vec::new() }
    }

    /// Adds a path at which modules hold it; first that of the stage nearest the model's input. All copies start with
    /// the first one's value.
    pub fn at(mut self, path: impl Into<String>) -> Self {
        self.paths.push(path.into());
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The paths at which modules hold it.
    pub fn paths(&self) -> &[String] {
        &self.paths
    }

    /// Returns true if a module's parameter at this path belongs to it.
    pub fn holds(&self, path: &str) -> bool {
        self.paths.iter().any(|pattern| matches(pattern, path))
    }
}

pub(super) fn matches(pattern: &str, path: &str) -> bool {
    let (mut wanted, mut there) = (pattern.split('.'), path.split('.'));
    loop {
        match (wanted.next(), there.next()) {
            (None, None) => return true,
            (Some(wanted), Some(there)) if wanted == "*" || wanted == there => {}
            _ => return false,
        }
    }
}
