//! Why parameters cannot be shared as declared.

/// A declaration, or the lack of one, that would let copies of a parameter drift apart.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SharedError {
    /// A declared path leads nowhere.
    #[error(
        "shared parameter `{name}`: no stage has a float parameter at `{path}`; correct the path, or leave it out; there are {there}"
    )]
    NotFound {
        /// The declaration.
        name: String,
        /// The path that leads nowhere.
        path: String,
        /// Some paths that lead somewhere.
        there: String,
    },
    /// Two declarations claim one parameter.
    #[error("parameter `{path}` of stage {stage} is declared as `{first}` and as `{second}`; declare it once")]
    DeclaredTwice {
        /// The stage.
        stage: usize,
        /// Its parameter.
        path: String,
        /// One declaration.
        first: String,
        /// The other.
        second: String,
    },
    /// Copies differ in shape, element type, or whether they are trained.
    #[error(
        "shared parameter `{name}`: `{path}` of stage {stage} is {got}, but `{first_path}` of stage {first_stage} is {expected}; copies must be alike"
    )]
    Unlike {
        /// The declaration.
        name: String,
        /// The stage of a copy.
        stage: usize,
        /// Its path there.
        path: String,
        /// What it is.
        got: String,
        /// The stage of the first copy.
        first_stage: usize,
        /// Its path there.
        first_path: String,
        /// What that is.
        expected: String,
    },
    /// One parameter (by Burn's identifier) is on several stages, and nothing says so.
    #[error(
        "`{first_path}` of stage {first_stage} and `{path}` of stage {stage} are one parameter by their identifier, but each would be trained on its own and drift apart; declare it with `Builder::share`, or give one of them an identifier of its own"
    )]
    Undeclared {
        /// The first stage.
        first_stage: usize,
        /// Its path there.
        first_path: String,
        /// The other stage.
        stage: usize,
        /// Its path there.
        path: String,
    },
    /// The optimizer stepped copies differently.
    #[error(
        "shared parameter `{name}`: after the first step `{path}` of stage {stage} differs from `{first_path}` of stage {first_stage}, though both got the same gradient; does `Builder::optimizer` make the same optimizer for every stage?"
    )]
    Diverged {
        /// The declaration.
        name: String,
        /// The stage of a copy.
        stage: usize,
        /// Its path there.
        path: String,
        /// The stage of the first copy.
        first_stage: usize,
        /// Its path there.
        first_path: String,
    },
    /// Of two stages that hold a copy, one is sharded over data-parallel replicas.
    #[error(
        "shared parameter `{name}`: stage {stage} is sharded over data-parallel replicas, and stage {first_stage}, which has a copy too, is not, or the other way round; say the same of both with `StageBox::sharded`"
    )]
    HalfSharded {
        /// The declaration.
        name: String,
        /// The stage of a copy.
        stage: usize,
        /// The stage of the first copy.
        first_stage: usize,
    },
}
