//! The names of a stage's parameters in the whole model.
//!
//! Guarantees: a name depends on the model, not on its cut, once the stage has declared the position of its layers.
//! So a checkpoint of one cut fits another.
//!
//! 1. A parameter's path is that of Burn's visitors: fields and positions in lists, joined by dots
//!    (`blocks.0.up.weight`).
//! 2. By default the name is the path, which is right for a whole model, and for stages that share no paths.
//! 3. A stage that holds layers 4 to 7 of a list has them at its own positions 0 to 3:
//!    [`Names::layers_from`]`("blocks", 4)` adds 4.
//! 4. [`Names::renamed`] changes the result, last.
//! 5. For optimizers and learning rates, a copy of a shared parameter has the name of the model's first copy, just as
//!    a parameter with several paths in one module has the name of its first path. So all copies are stepped alike.
//!
//! If parameters of two stages have one name, the pipeline refuses to save; if names were given, it is not built. It
//! is not built either if no stage has a parameter in a declared list of layers.

use burn::module::ParamId;
use std::collections::HashMap;
use std::sync::Arc;

type Rename = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// Turns the paths of a stage's parameters into their names in the whole model.
///
/// ```
/// use burn_pipeline::stage::Names;
///
/// let names = Names::default().layers_from("blocks", 4);
/// assert_eq!(names.in_model("blocks.1.up.weight"), "blocks.5.up.weight");
/// assert_eq!(names.in_model("head.norm.gamma"), "head.norm.gamma");
/// ```
#[derive(Clone, Default)]
pub struct Names {
    lists: Vec<(String, usize)>,
    rename: Option<Rename>,
    /// The names of the first copies, for shared parameters whose first copy is on an earlier stage.
    first_copies: HashMap<ParamId, String>,
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Names").field("lists", &self.lists).field("renames", &self.rename.is_some()).finish()
    }
}

impl Names {
    /// Declares that position 0 of the list at path `list` is layer `first` of the model.
    pub fn layers_from(mut self, list: impl Into<String>, first: usize) -> Self {
        self.lists.push((list.into(), first));
        self
    }

    /// Applies `rename` to the names that the other rules give.
    pub fn renamed(mut self, rename: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.rename = Some(Arc::new(rename));
        self
    }

    /// The name in the whole model of the parameter at a path of the stage.
    pub fn in_model(&self, path: &str) -> String {
        let moved = self.lists.iter().find_map(|(list, first)| moved(path, list, *first));
        let name = moved.unwrap_or_else(|| path.to_owned());
        match &self.rename {
            Some(rename) => rename(&name),
            None => name,
        }
    }

    /// The name by which the parameter groups of optimizers and learning rates find a parameter of the stage.
    pub(crate) fn of_parameter(&self, id: ParamId, path: &str) -> String {
        self.first_copies.get(&id).cloned().unwrap_or_else(|| self.in_model(path))
    }

    /// Returns true if the paths themselves are the names.
    pub(crate) fn are_paths(&self) -> bool {
        self.lists.is_empty() && self.rename.is_none()
    }

    /// The declared lists, each with true if one of these paths leads through it.
    pub(crate) fn lists<'a>(&'a self, paths: &'a [&str]) -> impl Iterator<Item = (String, bool)> + use<'a> {
        let leads = |list: &str| paths.iter().any(|path| moved(path, list, 0).is_some());
        self.lists.iter().map(move |(list, _)| (list.clone(), leads(list)))
    }

    /// Declares that a parameter is a copy of one whose first copy in the model has this name.
    pub(crate) fn copy_of(&mut self, id: ParamId, first: String) {
        self.first_copies.insert(id, first);
    }
}

/// The path with its position in the list counted from `first`; `None` if it does not lead through the list.
fn moved(path: &str, list: &str, first: usize) -> Option<String> {
    let rest = path.strip_prefix(list)?.strip_prefix('.')?;
    let (position, inside) = rest.split_once('.').unwrap_or((rest, ""));
    let layer = position.parse::<usize>().ok()? + first;
    Some(if inside.is_empty() { format!("{list}.{layer}") } else { format!("{list}.{layer}.{inside}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_through_the_list_are_counted_on() {
        let names = Names::default().layers_from("net.blocks", 3).layers_from("skips", 1);
        for (path, name) in [
            ("net.blocks.0.up.weight", "net.blocks.3.up.weight"),
            ("net.blocks.12", "net.blocks.15"),
            ("skips.0", "skips.1"),
            ("blocks.0.up.weight", "blocks.0.up.weight"),
            ("net.blocks_more.0.weight", "net.blocks_more.0.weight"),
            ("net.blocks.norm.gamma", "net.blocks.norm.gamma"),
        ] {
            assert_eq!(names.in_model(path), name);
        }
    }

    #[test]
    fn renaming_comes_last() {
        let names = Names::default().layers_from("blocks", 2).renamed(|name| format!("decoder.{name}"));
        assert_eq!(names.in_model("blocks.0.bias"), "decoder.blocks.2.bias");
    }
}
