//! A complete checkpoint, opened for reading.
//!
//! 1. [`Checkpoint::open`] reads the manifest. Names, shapes and element types are compared with a model's before any
//!    file is opened.
//! 2. A file is read once, as a whole, and its checksum compared; what a stage needs is copied out of it.
//! 3. Nothing of a model changes until everything was found to fit.

use super::error::CheckpointError;
use super::manifest::{Manifest, ParameterEntry, StateEntry, dtype_name};
use super::pretrained::is_adapter;
use super::tensors::{HeldDigest, Item, Tensors, write_model};
use super::types::{as_type_of, fits};
use crate::payload::AnyTensor;
use crate::stage::{
    ErasedStage, NamedWeight, Names, ParameterState, StageState, StateValue, named_weights, with_optimizer_state,
    with_weights,
};
use crate::tensor_parallel::{Holders, TensorGroup};
use crate::train::progress::Progress;
use crate::train::shared::Sharing;
use burn::module::{Module, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::TensorData;
use burn_pipeline_plan::plan::StageId;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// A complete checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    pub(super) manifest: Manifest,
    /// The indices of the parameters with each name; copies of a tied parameter share one name.
    pub(super) places: BTreeMap<String, Vec<usize>>,
}

/// Prefix of the name that all copies of a tied parameter share; no path in a module contains a slash.
const SHARED: &str = "shared/";

/// Which parts of a checkpoint to load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contents {
    /// Weights, and the optimizer's state if there is an optimizer.
    All,
    Weights,
}

/// What a stage or a module needs from a checkpoint.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) weights: &'a [NamedWeight],
    /// The stage, for error messages.
    pub(super) stage: Option<usize>,
    /// The ranks over which it is cut; this rank takes its pieces.
    pub(super) holders: Holders<'a>,
    pub(super) contents: Contents,
    pub(super) has_optimizer: bool,
    /// Digests of the values that the checkpoint leaves to the model.
    pub(super) held: &'a HashMap<ParamId, HeldDigest>,
    /// True if parameters in half precision may have masters, those that are frozen too.
    pub(super) masters: bool,
    /// The frozen parameters in half precision that a rule may step.
    pub(super) ruled: &'a HashSet<ParamId>,
}

impl Checkpoint {
    /// Opens the checkpoint in a folder and reads its manifest.
    ///
    /// # Errors
    /// Returns [`CheckpointError`] if the manifest is missing, damaged, or of another version.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let folder = folder.into();
        let manifest = Manifest::read(&folder)?;
        let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (place, entry) in manifest.parameters.iter().enumerate() {
            for name in &entry.names {
                places.entry(name.clone()).or_default().push(place);
            }
        }
        Ok(Self { folder, manifest, places })
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The progress of the job.
    pub fn progress(&self) -> Progress {
        self.manifest.progress
    }

    /// A text that distinguishes it from other checkpoints: its name, its step, and the checksum of its manifest.
    pub(crate) fn identity(&self) -> String {
        let name = self.folder.file_name().unwrap_or_default().to_string_lossy();
        // Numbers and text can always be encoded; if that failed, all ranks would get the same sum.
        let sum = self.manifest.sum().unwrap_or_default();
        format!("{name}, step {}, #{sum:08x}", self.manifest.progress.steps)
    }

    /// The name of the plan that was run, and the number of its stages.
    pub fn plan(&self) -> (&str, usize) {
        (&self.manifest.plan, self.manifest.stages)
    }

    /// The value that the caller saved beside the model.
    ///
    /// # Errors
    /// Returns [`CheckpointError::Beside`] if it is not a `T`.
    pub fn beside<T: DeserializeOwned>(&self) -> Result<T, CheckpointError> {
        serde_json::from_str(&self.manifest.beside).map_err(|e| CheckpointError::Beside(e.to_string()))
    }

    /// The parameters that it holds.
    pub fn parameters(&self) -> &[ParameterEntry] {
        &self.manifest.parameters
    }

    /// Reads every file, those of its base too, and compares its checksum.
    ///
    /// # Errors
    /// Returns the error of the first file that is missing or damaged.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        self.manifest.files.iter().try_for_each(|file| Tensors::read(&self.folder, file).map(drop))?;
        self.base()?.map_or(Ok(()), |base| base.verify())
    }

    /// Loads the saved weights into a module, which may be any part of the model or all of it.
    ///
    /// # Errors
    /// Returns [`CheckpointError`] if a parameter is missing or has another shape or element type (half precision and
    /// f32 are converted, as by [`Pipeline::load`](crate::train::Pipeline::load)), or if a file is damaged.
    pub fn load_module<M: Module>(&self, module: M, names: &Names) -> Result<M, CheckpointError> {
        let state = self.state_of(&named_weights(&module, names), Contents::Weights)?;
        Ok(with_weights(module, &state.weights))
    }

    /// Loads the state saved for a module's parameters into an optimizer.
    ///
    /// # Errors
    /// Same as [`Checkpoint::load_module`]. Also fails if no optimizer state was saved, or that of another type of
    /// optimizer.
    pub fn load_optimizer<M: Module>(
        &self,
        optimizer: ModuleOptimizer,
        module: &M,
        names: &Names,
    ) -> Result<ModuleOptimizer, CheckpointError> {
        let weights = named_weights(module, names);
        let state = self.state_of(&weights, Contents::All)?;
        let paths = weights.into_iter().map(|weight| (weight.id, weight.path)).collect();
        let states = state.optimizer.unwrap_or_default();
        with_optimizer_state(optimizer, &states, &paths).map_err(CheckpointError::OptimizerState)
    }

    /// Returns what a module with these weights takes over, which is not cut.
    fn state_of(&self, weights: &[NamedWeight], contents: Contents) -> Result<StageState, CheckpointError> {
        let alone = TensorGroup::alone();
        let holders = Holders::new(&alone, &alone);
        let held = &self.digests_of(weights, holders);
        let has_optimizer = contents == Contents::All;
        let (stage, masters, ruled) = (None, false, &HashSet::new());
        let wanted = Wanted { weights, stage, holders, contents, has_optimizer, held, masters, ruled };
        self.state_for(wanted, &mut || ()).map(|(state, _)| state)
    }

    /// Writes the weights of the whole model into one safetensors file, by their names; tied ones once, under the name
    /// of their first copy.
    ///
    /// # Errors
    /// Returns [`CheckpointError`] if a file of the checkpoint is damaged, or the new file cannot be written.
    pub fn export(&self, path: impl AsRef<Path>) -> Result<(), CheckpointError> {
        let mut known = BTreeSet::new();
        let is_first =
            |place: &usize| shared_name(&self.manifest.parameters[*place]).is_none_or(|name| known.insert(name));
        let all = (0..self.manifest.parameters.len()).filter(is_first).collect();
        let read = self.read(&all, false, &mut || ())?;
        let key = |place: usize| self.manifest.parameters[place].key();
        let tensors: BTreeMap<&str, TensorData> = read.into_iter().map(|(at, (data, _))| (key(at), data)).collect();
        let items = tensors.into_iter().map(|(name, data)| Item::of(name.to_owned(), data));
        write_model(path.as_ref(), items.collect())
    }

    /// The parameters that are not among `used`, nor copies of one that is.
    pub(super) fn others(&self, used: &BTreeSet<usize>) -> Vec<String> {
        let taken: BTreeSet<&String> =
            used.iter().filter_map(|&place| shared_name(self.manifest.parameters.get(place)?)).collect();
        let entries = self.manifest.parameters.iter().enumerate().filter(|(place, entry)| {
            !used.contains(place) && !shared_name(entry).is_some_and(|name| taken.contains(name))
        });
        entries.map(|(_, entry)| entry.key().to_owned()).collect()
    }

    /// Returns what a stage takes over, and the indices of the entries that it comes from.
    pub(super) fn state_for(
        &self,
        wanted: Wanted<'_>,
        progress: &mut dyn FnMut(),
    ) -> Result<(StageState, BTreeSet<usize>), CheckpointError> {
        let Wanted { weights, holders, .. } = wanted;
        let with_optimizer = wanted.contents == Contents::All && wanted.has_optimizer;
        if with_optimizer && !self.manifest.optimizer {
            return Err(CheckpointError::NoOptimizerState);
        }
        let found: Vec<Vec<usize>> =
            weights.iter().map(|weight| self.find(weight, &wanted)).collect::<Result<_, _>>()?;
        for (weight, places) in weights.iter().zip(&found) {
            places.iter().try_for_each(|&place| self.compare_held(place, wanted.held.get(&weight.id)))?;
        }
        let used: BTreeSet<usize> = found.iter().flatten().copied().collect();
        let stored = used.iter().copied().filter(|&place| !self.leaves_to_model(&self.manifest.parameters[place]));
        let read = self.read(&stored.collect(), with_optimizer, progress)?;
        let mut state = StageState { optimizer: with_optimizer.then(HashMap::new), ..StageState::default() };
        for (weight, places) in weights.iter().zip(found) {
            let key = |place: usize| self.manifest.parameters[place].key();
            let mut copies = places.iter().filter_map(|&place| Some((place, read.get(&place)?)));
            let Some((place, first)) = copies.next() else { continue };
            if let Some((other, _)) = copies.find(|(_, other)| differ(first, other)) {
                return Err(CheckpointError::Copies { first: key(place).to_owned(), second: key(other).to_owned() });
            }
            let (data, mut kept) = first.clone();
            // A parameter that was trained before and is frozen here keeps its master, with the optimizer's state; so
            // does one that a rule steps.
            let has_master = with_optimizer && !kept.is_empty() || wanted.ruled.contains(&weight.id);
            let keeps = has_master && wanted.masters && data.dtype() == AnyTensor::widest(weight.value.dtype());
            let data = if keeps { data } else { as_type_of(&weight.value, key(place), data, &mut kept)? };
            let whole = AnyTensor::from_data(data, &weight.value.device());
            state.weights.insert(weight.id, holders.own_piece(weight.id, whole));
            holders.cut_state(weight.id, &mut kept, &weight.value).map_err(CheckpointError::OptimizerState)?;
            if let Some(states) = state.optimizer.as_mut().filter(|_| !kept.is_empty()) {
                states.insert(weight.id, kept);
            }
        }
        Ok((state, used))
    }

    /// The indices of the entries for a parameter: one, or several if copies of it were saved. The first is the same
    /// for all copies.
    fn find(&self, weight: &NamedWeight, of: &Wanted<'_>) -> Result<Vec<usize>, CheckpointError> {
        let places: BTreeSet<usize> =
            weight.names.iter().filter_map(|name| self.places.get(name)).flatten().copied().collect();
        let keeps = || of.contents == Contents::Weights && weight.names.iter().any(|name| is_adapter(name));
        if places.is_empty() && !keeps() {
            return Err(CheckpointError::MissingParameter { name: weight.names[0].clone(), stage: of.stage });
        }
        let (value, wanted) = (&weight.value, dtype_name(weight.value.dtype()));
        let shape = of.holders.whole_shape(weight.id, value.shape()).to_vec();
        for &place in &places {
            let entry = &self.manifest.parameters[place];
            if !fits(&entry.dtype, value) || entry.shape != shape {
                let (saved, wanted) =
                    (format!("{:?} of {}", entry.shape, entry.dtype), format!("{shape:?} of {wanted}"));
                return Err(CheckpointError::Structure { name: entry.key().to_owned(), saved, wanted });
            }
        }
        Ok(places.into_iter().collect())
    }

    /// Reads the entries with these indices, file by file.
    pub(super) fn read(
        &self,
        places: &BTreeSet<usize>,
        with_optimizer: bool,
        progress: &mut dyn FnMut(),
    ) -> Result<HashMap<usize, (TensorData, ParameterState)>, CheckpointError> {
        let (in_base, own): (BTreeSet<usize>, BTreeSet<usize>) =
            places.iter().partition(|&&place| self.manifest.parameters[place].in_base);
        let mut read = self.read_in_base(&in_base, progress)?;
        for (index, file) in self.manifest.files.iter().enumerate() {
            let here: Vec<usize> =
                own.iter().copied().filter(|&place| self.manifest.parameters[place].file == index).collect();
            if here.is_empty() {
                continue;
            }
            let tensors = Tensors::read(&self.folder, file)?;
            progress();
            for place in here {
                let entry = &self.manifest.parameters[place];
                let data = tensors.take(entry.key())?;
                if **data.shape() != *entry.shape || dtype_name(data.dtype()) != entry.dtype {
                    let what = format!("its `{}` is not what the manifest describes", entry.key());
                    return Err(CheckpointError::damaged(&self.folder.join(&file.name), what));
                }
                let state = if with_optimizer { kept(entry, &tensors)? } else { ParameterState::new() };
                read.insert(place, (data, state));
            }
        }
        Ok(read)
    }
}

/// The saved optimizer state of a parameter.
fn kept(entry: &ParameterEntry, tensors: &Tensors) -> Result<ParameterState, CheckpointError> {
    let value = |(field, kept): (&String, &StateEntry)| {
        let value = match kept.value() {
            Some(number) => number,
            None => StateValue::Tensor(tensors.take(&ParameterEntry::state_key(entry.key(), field))?),
        };
        Ok((field.clone(), value))
    };
    entry.state.iter().map(value).collect()
}

/// The name that all copies of a tied parameter share.
fn shared_name(entry: &ParameterEntry) -> Option<&String> {
    entry.names.iter().find(|name| name.starts_with(SHARED))
}

/// A stage's weights with the names by which they are saved and found. A copy of a tied parameter also has the
/// declaration's name, so a cut with more, fewer or other copies finds the parameter.
pub(super) fn names_in_checkpoint(held: &dyn ErasedStage, stage: StageId, sharing: &Sharing) -> Vec<NamedWeight> {
    let mut weights = held.named_weights();
    for weight in &mut weights {
        weight.names.extend(sharing.name_of(stage, &weight.path).map(|name| format!("{SHARED}{name}")));
    }
    weights
}

/// The same, with the names of all copies of tied parameters: what was saved for any of them must be equal.
pub(super) fn names_to_find(held: &dyn ErasedStage, stage: StageId, sharing: &Sharing) -> Vec<NamedWeight> {
    let mut weights = names_in_checkpoint(held, stage, sharing);
    for weight in &mut weights {
        weight.names.extend(sharing.names_of(stage, &weight.path).cloned());
    }
    weights
}

/// Returns true if two copies have other values, or the optimizer keeps something else for them.
fn differ(one: &(TensorData, ParameterState), other: &(TensorData, ParameterState)) -> bool {
    one.0.as_bytes() != other.0.as_bytes() || one.1 != other.1
}

/// The optimizer state of each of a stage's parameters, by id.
pub(super) type States = HashMap<ParamId, ParameterState>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::checkpoint::tensors::write;
    use tempfile::tempdir;

    #[test]
    fn a_file_that_holds_other_tensors_than_its_manifest_describes_is_refused() {
        let folder = tempdir().unwrap();
        for (dtype, shape, fits) in [("f32", vec![2, 3], true), ("f32", vec![3, 2], false), ("i32", vec![2, 3], false)]
        {
            let item = Item::of("x".into(), TensorData::new(vec![0f32; 6], [2, 3]));
            let file = write(&folder.path().join("stage.safetensors"), vec![item], &[], &mut || ()).unwrap();
            let mut manifest = Manifest::new(Progress::default(), "null".into(), "plan".into(), 1);
            manifest.files.push(file);
            let (names, dtype, state) = (vec!["x".to_owned()], dtype.to_owned(), BTreeMap::new());
            manifest.parameters.push(ParameterEntry {
                names,
                dtype,
                shape,
                file: 0,
                state,
                digest: String::new(),
                in_base: false,
            });
            manifest.write(folder.path()).unwrap();
            let checkpoint = Checkpoint::open(folder.path()).unwrap();
            // Another rank may claim to have used a parameter that does not exist.
            assert_eq!(checkpoint.others(&BTreeSet::from([0, 9])), Vec::<String>::new());
            let read = checkpoint.read(&BTreeSet::from([0]), false, &mut || ());
            match read {
                Ok(read) => assert!(fits && read.len() == 1),
                Err(error) => assert!(!fits && error.to_string().contains("`x`"), "{error}"),
            }
        }
    }
}
