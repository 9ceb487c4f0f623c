//! Why parameters cannot be shared as declared.

/// Parameters that are not shared as declared, or shared without a declaration, so that their copies would drift
/// apart. A copy is at `path` in the module of its `stage`; `first_stage` and `first_path` are those of the first
/// copy in model order.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum SharedError {
    /// A declared path leads nowhere.
    #[error(
        "shared parameter `{name}`: no stage has a float parameter at `{path}`; correct the path, or leave it out; \
         there are {there}"
    )]
    NotFound { name: String, path: String, there: String },
    /// Two declarations claim one parameter.
    #[error("parameter `{path}` of stage {stage} is declared as `{first}` and as `{second}`; declare it once")]
    DeclaredTwice { stage: usize, path: String, first: String, second: String },
    /// Copies differ in shape, element type, whether they are trained, or how they are cut.
    #[error(
        "shared parameter `{name}`: `{path}` of stage {stage} is {got}, but `{first_path}` of stage {first_stage} is \
         {expected}; copies must be alike"
    )]
    Unlike {
        name: String,
        stage: usize,
        path: String,
        got: String,
        first_stage: usize,
        first_path: String,
        expected: String,
    },
    /// One parameter (by Burn's identifier) is on several stages without a declaration.
    #[error(
        "`{first_path}` of stage {first_stage} and `{path}` of stage {stage} are one parameter by their identifier, \
         but each would be trained on its own and drift apart; declare it with `Builder::share`, or give one of them \
         an identifier of its own"
    )]
    Undeclared { first_stage: usize, first_path: String, stage: usize, path: String },
    /// The optimizer stepped copies differently.
    #[error(
        "shared parameter `{name}`: after the first step `{path}` of stage {stage} differs from `{first_path}` of \
         stage {first_stage}, though both got the same gradient; make the same optimizer for every stage \
         (`Builder::optimizer`)"
    )]
    Diverged { name: String, stage: usize, path: String, first_stage: usize, first_path: String },
    /// A replaced module has another value of a copy, or trains it while another copy is frozen.
    #[error(
        "shared parameter `{name}`: since a module was replaced, `{path}` of stage {stage} differs from `{first_path}` \
         of stage {first_stage} in value, or in whether it trains; change all copies alike, one call of \
         `Pipeline::replace_module` for each stage"
    )]
    Replaced { name: String, stage: usize, path: String, first_stage: usize, first_path: String },
    /// Tensor-parallel groups of different sizes hold the copies.
    #[error(
        "shared parameter `{name}`: stage {stage} has a group of {ranks} rank(s), and stage {first_stage}, which has a \
         copy too, one of {first_ranks}; give both groups one size (`Builder::tensor_parallel`)"
    )]
    GroupSizes { name: String, stage: usize, ranks: usize, first_stage: usize, first_ranks: usize },
    /// Only one of two stages that hold a copy is sharded over data-parallel replicas.
    #[error(
        "shared parameter `{name}`: stages {first_stage} and {stage} hold copies, but only one of them is sharded over \
         data-parallel replicas; set the same for both with `StageBox::sharded`"
    )]
    HalfSharded { name: String, stage: usize, first_stage: usize },
}

burn_pipeline_plan::debug_as_text!(SharedError);
