//! Everything `inspect` says, as data: printed as JSON, or as a page.

use super::inventory::{Amount, Inventory};
use super::part::NetworkPart;
use crate::args::InspectArgs;
use crate::hub_model;
use crate::load::ModelSource;
use crate::mtp_state::MtpState;
use crate::report::{MemoryItem, MemoryReport};
use forerun::DeviceName;
use forerun_backend::MemoryPlan;
use forerun_base::Token;
use forerun_engine::Settings;
use forerun_model::{LayerSpec, MlpSpec, ModelSpec, MoeSpec};
use serde::Serialize;
use std::cmp::Reverse;
use std::path::Path;

#[derive(Serialize)]
pub(super) struct InspectReport {
    pub(super) model: String,
    pub(super) architecture: Architecture,
    pub(super) parameters: u64,
    pub(super) parts: Vec<PartReport>,
    pub(super) formats: Vec<FormatReport>,
    pub(super) mtp: Mtp,
    pub(super) text: Text,
    pub(super) files: Vec<FileReport>,
    pub(super) memory: Memory,
}

#[derive(Serialize)]
pub(super) struct Architecture {
    pub(super) model_type: String,
    pub(super) layers: usize,
    /// In order of first appearance.
    pub(super) layer_kinds: Vec<LayerKind>,
    pub(super) hidden: usize,
    pub(super) vocabulary: usize,
    pub(super) max_positions: usize,
    /// One per rope.
    pub(super) rotary_dims: Vec<usize>,
    pub(super) tied_embeddings: bool,
}

#[derive(Serialize)]
pub(super) struct LayerKind {
    pub(super) count: usize,
    pub(super) mixer: String,
    pub(super) mlp: String,
}

#[derive(Serialize)]
pub(super) struct PartReport {
    pub(super) part: NetworkPart,
    pub(super) parameters: u64,
    pub(super) bytes: u64,
}

#[derive(Serialize)]
pub(super) struct FormatReport {
    pub(super) format: String,
    pub(super) parameters: u64,
    pub(super) bytes: u64,
}

#[derive(Serialize)]
pub(super) struct Mtp {
    pub(super) present: bool,
    pub(super) file: Option<String>,
    /// Models of this type have one, but these files do not hold it.
    pub(super) missing: bool,
    /// Where there is none: whether it was lost, and how to get it.
    #[serde(skip)]
    pub(super) absence: String,
}

#[derive(Serialize)]
pub(super) struct Text {
    /// Tokens the tokenizer knows; `None` without one.
    pub(super) tokenizer_tokens: Option<usize>,
    pub(super) chat_template: bool,
    pub(super) eos_token_ids: Vec<Token>,
}

#[derive(Serialize)]
pub(super) struct FileReport {
    pub(super) path: String,
    pub(super) bytes: u64,
    pub(super) tensors: usize,
}

#[derive(Serialize)]
pub(super) struct Memory {
    pub(super) context: usize,
    pub(super) sequences: usize,
    pub(super) prefill_chunk: usize,
    pub(super) kv: String,
    #[serde(flatten)]
    pub(super) room: Headroom,
    #[serde(flatten)]
    pub(super) plan: MemoryReport,
}

/// What an engine is planned with.
pub(super) struct Plan {
    pub(super) settings: Settings,
    pub(super) memory: MemoryPlan,
    pub(super) room: Headroom,
}

/// Whether there is memory for it; null where the system does not tell, or any amount may be used.
#[derive(Serialize)]
pub(super) struct Headroom {
    /// What is free, or what was typed.
    pub(super) free_bytes: Option<u64>,
    pub(super) fits: Option<bool>,
    /// With the same settings otherwise; null where no context fits, too.
    pub(super) longest_context: Option<usize>,
}

impl InspectReport {
    pub(super) fn new(
        source: &ModelSource,
        inventory: &Inventory,
        plan: Plan,
    ) -> anyhow::Result<Self> {
        let Amount { parameters, loaded, .. } = inventory.used();
        let part = |(&part, amount): (&NetworkPart, &Amount)| PartReport {
            part,
            parameters: amount.parameters,
            bytes: amount.bytes,
        };
        let format = |(format, amount): (&String, &Amount)| FormatReport {
            format: format.clone(),
            parameters: amount.parameters,
            bytes: amount.bytes,
        };
        let mut formats: Vec<FormatReport> = inventory.formats.iter().map(format).collect();
        formats.sort_by_key(|format| Reverse(format.bytes));
        Ok(Self {
            model: source.path.clone(),
            architecture: Architecture::new(&source.blueprint.spec),
            parameters,
            parts: inventory.parts.iter().map(part).collect(),
            formats,
            mtp: Mtp::new(source),
            text: Text::new(source)?,
            files: files(source),
            memory: Memory::new(plan, loaded),
        })
    }
}

impl Architecture {
    fn new(spec: &ModelSpec) -> Self {
        Self {
            model_type: spec.family.clone(),
            layers: spec.layers.len(),
            layer_kinds: layer_kinds(&spec.layers),
            hidden: spec.hidden,
            vocabulary: spec.vocabulary,
            max_positions: spec.max_positions,
            rotary_dims: spec.ropes.iter().map(|rope| rope.rotated_dims()).collect(),
            tied_embeddings: spec.tied,
        }
    }
}

fn layer_kinds(layers: &[LayerSpec]) -> Vec<LayerKind> {
    let mut kinds: Vec<LayerKind> = Vec::new();
    for LayerSpec { mixer, mlp, .. } in layers {
        let (mixer, mlp) = (mixer.to_string(), mlp_text(mlp));
        match kinds.iter_mut().find(|kind| kind.mixer == mixer && kind.mlp == mlp) {
            Some(kind) => kind.count += 1,
            None => kinds.push(LayerKind { count: 1, mixer, mlp }),
        }
    }
    kinds
}

fn mlp_text(mlp: &MlpSpec) -> String {
    match mlp {
        MlpSpec::Dense(width) => format!("mlp, width {width}"),
        MlpSpec::Sparse { ffn, deviations } => {
            format!("sparse mlp, width {ffn}, gates from {deviations:.2} deviations on")
        }
        MlpSpec::Moe(moe) => experts_text(moe),
        MlpSpec::None => "no mlp".to_owned(),
        MlpSpec::Hashed(moe) => format!("{}, by token", experts_text(moe)),
        MlpSpec::Beside { dense, moe } => {
            format!("mlp, width {dense}, beside {}", experts_text(moe))
        }
    }
}

fn experts_text(moe: &MoeSpec) -> String {
    let shared = moe.shared.map(|shared| format!(", shared expert of width {}", shared.width));
    let groups = moe.router.groups.filter(|groups| groups.open < groups.count);
    let groups = groups.map(|groups| format!(" in {} of {} groups", groups.open, groups.count));
    let (top_k, experts, ffn) = (moe.top_k, moe.experts, moe.ffn);
    let (groups, shared) = (groups.unwrap_or_default(), shared.unwrap_or_default());
    format!("{top_k} of {experts} experts{groups}, width {ffn}{shared}")
}

impl Mtp {
    fn new(source: &ModelSource) -> Self {
        let state = MtpState::of(&source.blueprint.checkpoint);
        let name = hub_model::name_of(Path::new(&source.path));
        let absence = state.remark(name.as_ref().map(|name| &name.repo), &[]);
        let file = match &state {
            MtpState::Present { file } => Some(file.display().to_string()),
            _ => None,
        };
        let missing = matches!(state, MtpState::Missing | MtpState::MissingInGguf);
        Self { present: source.blueprint.spec.drafter.is_some(), file, missing, absence }
    }
}

impl Text {
    fn new(source: &ModelSource) -> anyhow::Result<Self> {
        let template = source.text.template()?;
        Ok(Self {
            tokenizer_tokens: source.text.tokenizer.as_ref().map(|t| t.vocab_size()),
            chat_template: template.is_some(),
            eos_token_ids: source.text.end_tokens(template.as_ref()),
        })
    }
}

fn files(source: &ModelSource) -> Vec<FileReport> {
    let file = |file: &forerun_weights::WeightFile| FileReport {
        path: file.path().display().to_string(),
        bytes: file.bytes().len() as u64,
        tensors: file.tensors(),
    };
    source.blueprint.checkpoint.files().iter().map(file).collect()
}

impl Memory {
    /// Weights count as loaded; small vectors are wider still.
    fn new(plan: Plan, weights: u64) -> Self {
        let Plan { settings, memory, room } = plan;
        let mut plan = MemoryReport::from(&memory);
        plan.total_bytes += weights;
        plan.items.insert(0, MemoryItem { label: "weights".to_owned(), bytes: weights });
        Self {
            context: settings.context,
            sequences: settings.sequences,
            prefill_chunk: settings.prefill_chunk,
            kv: settings.kv.to_string().to_lowercase(),
            room,
            plan,
        }
    }
}

impl Headroom {
    /// Compares what the engine takes with what may be used.
    pub(super) fn take(
        args: &InspectArgs,
        source: &ModelSource,
        settings: &Settings,
    ) -> anyhow::Result<Self> {
        let Some(free) = args.engine.room(DeviceName::Cpu) else {
            return Ok(Self { free_bytes: None, fits: None, longest_context: None });
        };
        let fits = source.memory_need(settings)?.total() <= free;
        let longest_context = source.longest_context(settings, free)?;
        Ok(Self { free_bytes: Some(free), fits: Some(fits), longest_context })
    }
}
