//! The vocabulary-parallel layers of a pipeline's plans: exactly those of which ranks have pieces.

use crate::train::error::BuildError;
use crate::vocabulary::Piece;
use burn_pipeline_plan::cost::{Profile, UniformCosts, VocabularyCost};
use burn_pipeline_plan::plan::{Action, Op, Plan, Task};

/// The vocabulary-parallel layers of the plans.
#[derive(Clone, Debug, Default)]
pub(crate) struct VocabularyPass {
    /// The layers of which ranks have pieces.
    pub(crate) pieces: Vec<Piece>,
    /// Costs used to place pieces, if they include a vocabulary's.
    pub(crate) profile: Option<Profile>,
}

/// Assumed costs of a rank's pieces if none are known: the head takes half as long as the rank's stages.
const ROUGH: VocabularyCost = VocabularyCost {
    head_forward: 0.5,
    head_input: 0.5,
    head_weight: 0.5,
    embedding_forward: 0.05,
    embedding_weight: 0.05,
    head_activation_bytes: 0.0,
    weight_bytes: 0.0,
    hidden_bytes: 0.0,
    embedded_bytes: 0.0,
    statistics_bytes: 0.0,
};

impl VocabularyPass {
    /// Makes the plan vocabulary parallel for these layers; unchanged if it already is.
    pub(super) fn of(&self, plan: Plan) -> Result<Plan, BuildError> {
        let runs = |op: Op| plan.any_task(|task| task.op() == op);
        let spread = [(Piece::Embedding, Op::EmbeddingForward), (Piece::Head, Op::HeadForward)];
        let spread: Vec<Piece> = spread.into_iter().filter(|(_, op)| runs(*op)).map(|(piece, _)| piece).collect();
        match spread.is_empty() {
            _ if spread == self.pieces => Ok(plan),
            true => self.spread(&plan),
            false => {
                let plan = plan.name().to_owned();
                Err(BuildError::Vocabulary { plan, planned: listed(&spread), given: listed(&self.pieces) })
            }
        }
    }

    fn spread(&self, plan: &Plan) -> Result<Plan, BuildError> {
        let profile = match self.profile.clone().filter(|profile| profile.vocabulary().is_some()) {
            Some(profile) => profile,
            None => Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0))?.with_vocabulary(ROUGH)?,
        };
        let spread = plan.with_vocabulary(&profile)?;
        let absent = |task: Task| match task.op() {
            Op::HeadForward | Op::HeadBackward | Op::BroadcastHidden | Op::ReduceHead => {
                !self.pieces.contains(&Piece::Head)
            }
            op => op.is_vocabulary() && !self.pieces.contains(&Piece::Embedding),
        };
        let stays = |action: &&Action| !action.tasks().any(absent);
        Ok(spread.with_rows(spread.rows().iter().map(|row| row.iter().filter(stays).copied().collect()).collect()))
    }
}

fn listed(pieces: &[Piece]) -> String {
    match pieces {
        [] => "nothing".to_owned(),
        pieces => pieces.iter().map(|piece| format!("the {piece}")).collect::<Vec<_>>().join(" and "),
    }
}
