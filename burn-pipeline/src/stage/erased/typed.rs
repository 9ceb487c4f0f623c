//! A stage of a known module type: the module, its engine, its gradient sums and its optimizer, on the rank that
//! built them. Its methods are in the files of the traits that it implements.

use crate::payload::AnyTensor;
use crate::stage::engine::{Captured, Eager, Engine, Recompute, SplitBackward, StageCode, StageFunction};
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::options::StageOptions;
use crate::stage::state::{GradientStore, Masters, as_leaves, forward_state, parameter_ids};
use burn::module::ParamId;
use burn::optim::ModuleOptimizer;
use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

/// A module and what it needs to be trained.
pub(in crate::stage) struct Typed<M: Stage> {
    /// An error if the module was refused, or while the optimizer or `after_step`, which take and return it, runs.
    pub(super) module: Result<M, StageError>,
    /// What the optimizer steps where the module has rounded copies.
    pub(super) masters: Masters,
    pub(super) function: StageFunction<M>,
    pub(super) engine: Box<dyn Engine<M>>,
    pub(super) store: GradientStore,
    pub(super) optimizer: Option<ModuleOptimizer>,
    pub(super) options: StageOptions,
    /// What the module's forward can change, once it is known.
    pub(super) forward_state: OnceCell<Vec<ParamId>>,
    /// How its engine was chosen: the way to split, whether the plan splits, and whether outputs are kept.
    pub(super) chosen: (SplitBackward, bool, bool),
    /// True if its module has an `after_step` of its own; `None` until it ran once.
    pub(super) follows_rule: Option<bool>,
    /// The offered module, until every rank has found its own to fit.
    pub(super) replacement: Option<M>,
    /// What forwards can change, as it was before a replacement was offered.
    pub(super) before_offer: HashMap<ParamId, AnyTensor>,
    /// Offered weights and optimizer of a checkpoint, until every rank has found its part readable.
    pub(super) offered: Option<(HashMap<ParamId, AnyTensor>, Option<ModuleOptimizer>)>,
}

const MODULE_LOST: &str = "its module was lost in a panic; build the pipeline anew";

impl<M: Stage> Typed<M> {
    pub(in crate::stage) fn new(module: M, function: StageFunction<M>) -> Self {
        Self {
            module: as_leaves(module, &HashMap::new()),
            masters: Masters::default(),
            function,
            engine: Box::new(Eager::new("no other way was chosen", &StageOptions::default(), false, false)),
            store: GradientStore::default(),
            optimizer: None,
            options: StageOptions::default(),
            forward_state: OnceCell::new(),
            chosen: (SplitBackward::default(), false, false),
            follows_rule: None,
            replacement: None,
            before_offer: HashMap::new(),
            offered: None,
        }
    }

    /// The module, if there is one. Borrows only this field, so that the engine can be borrowed at the same time.
    pub(super) fn present(module: &Result<M, StageError>) -> Result<&M, StageError> {
        module.as_ref().map_err(Clone::clone)
    }

    /// The user's code, if the module is there; borrows like [`Typed::present`].
    pub(super) fn code<'a>(
        function: &'a StageFunction<M>,
        module: &'a Result<M, StageError>,
    ) -> Result<StageCode<'a, M>, StageError> {
        Self::present(module).map(|module| StageCode { function, module })
    }

    /// Takes the module out, if there is one, until another is put in its place.
    pub(super) fn taken(module: &mut Result<M, StageError>) -> Result<M, StageError> {
        match module {
            Ok(_) => std::mem::replace(module, Err(StageError::Unsupported(MODULE_LOST.to_owned()))),
            Err(refused) => Err(refused.clone()),
        }
    }

    /// Replaces the module, if there is one, by what `change` makes of it. Meanwhile it has its masters.
    pub(super) fn change(&mut self, change: impl FnOnce(M) -> M) {
        let Self { module, masters, .. } = self;
        *module = Self::taken(module).map(|module| {
            let changed = change(masters.take(module));
            masters.round(changed)
        });
    }

    /// A copy of the module that has its masters.
    pub(super) fn whole(&self) -> Result<M, StageError> {
        Self::present(&self.module).map(|module| self.masters.whole(module.clone()))
    }

    /// Rounds the parameters of a module that has its masters, by the stage's [`Precision`](crate::stage::Precision).
    pub(super) fn rounded(&mut self, module: M) -> M {
        let Some(precision) = &self.options.precision else { return module };
        if self.masters.ruled.is_none() {
            self.masters.ruled = module.ruled().map(HashSet::from_iter);
        }
        let state = self.forward_state.get_or_init(|| forward_state(&module));
        self.masters.decide(&module, precision, &self.options.names, state);
        self.masters.round(module)
    }

    /// Takes over the module that its rule made; `before` are the identifiers of its parameters before the rule.
    pub(super) fn take_ruled(&mut self, module: M, before: &[ParamId]) {
        let module = self.masters.narrowed(module);
        let renamed = parameter_ids(&module) != before;
        if renamed {
            (self.forward_state, self.masters.ruled) = (OnceCell::new(), None);
        }
        self.module = Ok(self.rounded(module));
        if renamed {
            // Recordings give gradients by the identifiers of before.
            self.make_engine();
        }
    }

    /// Drops gradients and everything held for backwards.
    pub(super) fn forget(&mut self) {
        self.engine.clear();
        self.store.clear();
    }

    /// Makes the chosen engine anew.
    pub(super) fn make_engine(&mut self) {
        let (options, (split, splits, keep_outputs)) = (&self.options, self.chosen);
        let eager = |reason| Eager::new(reason, options, splits, keep_outputs);
        self.function.keeps_output = options.outputs;
        let captured = |strict| Box::new(Captured::new(strict, options, eager("it cannot be captured")));
        let engine: Box<dyn Engine<M>> = match (split, splits) {
            (SplitBackward::Eager, _) => Box::new(eager("it was asked for")),
            // A captured forward has its own generator for random numbers, and only a captured one is compiled.
            (SplitBackward::Auto, false) if !options.seeded && !options.compile => {
                Box::new(eager("the plan does not split its backward"))
            }
            (SplitBackward::Auto, _) => captured(false),
            (SplitBackward::Captured, _) => captured(true),
        };
        self.engine = match options.recompute {
            true => Box::new(Recompute::new(engine)),
            false => engine,
        };
    }
}
