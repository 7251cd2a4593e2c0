//! A mixture of experts, and an expert that every row goes through.

use super::Dense;
use crate::forward::{Output, Pass};
use crate::loader::Loader;
use crate::{ModelError, MoeSpec, RouterSpec, SharedExpertSpec};
use forerun_backend::WeightId;
use forerun_backend::op::{AddGated, ExpertRows, Experts, HashRouter, Linear, Router, Store};
use forerun_base::MatrixParts;

/// Weights of one mixture.
#[derive(Clone, Debug)]
pub(crate) struct Moe {
    spec: MoeSpec,
    router: WeightId,
    /// A number for each expert, added to its score for the choice.
    router_bias: Option<WeightId>,
    /// The experts of each token, where a table names them.
    table: Option<WeightId>,
    stacks: Stacks,
    /// A factor on each expert's weight.
    expert_scale: Option<WeightId>,
    shared: Option<SharedExpert>,
}

/// The expert that every row goes through.
#[derive(Clone, Copy, Debug)]
struct SharedExpert {
    mlp: Dense,
    gate: Option<WeightId>,
}

/// The experts' matrices.
#[derive(Clone, Copy, Debug)]
struct Stacks {
    gate: ExpertRows,
    up: ExpertRows,
    down: ExpertRows,
}

impl Moe {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        [path, shared_path]: [&str; 2],
        spec: &MoeSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let router = format!("{path}.{}", loader.names.router);
        let router = loader.matrix(&router, [spec.experts, hidden])?;
        let bias = format!("{path}.{}", loader.names.router_bias);
        let bias = spec.router.bias.then(|| loader.vector(&bias, spec.experts, |b| b));
        let stacks = Stacks::load(loader, path, spec, hidden)?;
        let shared =
            spec.shared.map(|shared| SharedExpert::load(loader, shared_path, shared, hidden));
        Ok(Self {
            spec: spec.clone(),
            router,
            router_bias: bias.transpose()?,
            table: None,
            stacks,
            expert_scale: None,
            shared: shared.transpose()?,
        })
    }

    /// A mixture whose experts a stored table names for each token.
    pub(super) fn load_hashed(
        loader: &mut Loader<'_>,
        [path, shared_path]: [&str; 2],
        spec: &MoeSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let name = format!("{path}.gate.tid2eid");
        let shape = loader.checkpoint.info(&name)?.shape;
        let wrong = |why: String| ModelError::Layout(format!("{name}: {why}"));
        let &[rows, columns] = &shape[..] else {
            return Err(wrong(format!("has shape {shape:?}")));
        };
        let (vocabulary, experts) = (loader.vocabulary, spec.experts);
        if [rows, columns] != [vocabulary, spec.top_k] {
            return Err(wrong(format!(
                "has shape {shape:?}, expected [{vocabulary}, {}]",
                spec.top_k
            )));
        }
        let numbers = loader.integers(&name)?;
        if numbers.iter().any(|&expert| usize::try_from(expert).map_or(true, |e| e >= experts)) {
            return Err(wrong(format!("names an expert outside 0..{experts}")));
        }
        let numbers: Vec<f32> = numbers.into_iter().map(|expert| expert as f32).collect();
        let table = Some(loader.numbers(&name, rows, &numbers)?);
        Ok(Self { table, ..Self::load(loader, [path, shared_path], spec, hidden)? })
    }

    /// A mixture that stands beside an MLP: its router is a module of its own.
    pub(super) fn load_beside(
        loader: &mut Loader<'_>,
        block: &str,
        spec: &MoeSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let router = loader.matrix(&format!("{block}.router.proj"), [spec.experts, hidden])?;
        let name = format!("{block}.router.per_expert_scale");
        let expert_scale = Some(loader.vector(&name, spec.experts, |s| s)?);
        let stacks = Stacks::load(loader, block, spec, hidden)?;
        let spec = spec.clone();
        let (router_bias, table, shared) = (None, None, None);
        Ok(Self { spec, router, router_bias, table, stacks, expert_scale, shared })
    }

    /// `Σ experts(normed) + shared(normed)` to `out`, the latter perhaps times `σ(gate)`.
    pub(super) fn forward(&self, pass: &mut Pass<'_>, out: Output) {
        self.route(pass);
        self.mix(pass, out);
        let Some(SharedExpert { mlp, gate }) = self.shared else { return };
        let (moe, dim) = (pass.space.moe, pass.sizes.hidden);
        let input = pass.normed();
        let Some(gate_weight) = gate else {
            return mlp.forward(pass, input, Output { store: Store::Add, ..out });
        };
        let activated = mlp.activate(pass, input);
        let shared = pass.rows_of(moe.shared, dim);
        let gate = pass.rows_of(moe.shared_gate, 1);
        pass.push(Linear::set(activated, mlp.down, shared));
        pass.push(Linear::set(input.x, gate_weight, gate));
        pass.push(AddGated { x: shared, gate, out: out.view });
    }

    /// Chooses experts for the rows in `normed`.
    pub(super) fn route(&self, pass: &mut Pass<'_>) {
        let MoeSpec { experts, top_k, router, .. } = self.spec;
        let RouterSpec { scores, groups, renormalise, scale, .. } = router;
        let moe = pass.space.moe;
        let x = pass.rows_of(pass.space.normed, pass.sizes.hidden);
        let logits = pass.rows_of(moe.logits, experts);
        let chosen = pass.rows_of(moe.chosen, top_k);
        let weights = pass.rows_of(moe.weights, top_k);
        pass.push(Linear::set(x, self.router, logits));
        if let Some(table) = self.table {
            return pass.push(HashRouter {
                ids: pass.inputs.embedded,
                table,
                logits,
                experts,
                top_k,
                scores,
                renormalise,
                scale,
                chosen,
                weights,
            });
        }
        pass.push(Router {
            logits,
            experts,
            top_k,
            scores,
            bias: self.router_bias,
            groups,
            renormalise,
            scale,
            expert_scale: self.expert_scale,
            chosen,
            weights,
        });
    }

    /// The chosen experts over the rows in `normed`.
    pub(super) fn mix(&self, pass: &mut Pass<'_>, out: Output) {
        let MoeSpec { experts, top_k, ffn, .. } = self.spec;
        let (moe, dim) = (pass.space.moe, pass.sizes.hidden);
        let Stacks { gate, up, down } = self.stacks;
        pass.push(Experts {
            x: pass.rows_of(pass.space.normed, dim),
            chosen: pass.rows_of(moe.chosen, top_k),
            weights: pass.rows_of(moe.weights, top_k),
            gate,
            up,
            down,
            experts,
            top_k,
            ffn,
            dim,
            activation: pass.sizes.activation,
            hidden: pass.rows_of(moe.hidden, top_k * ffn),
            partial: pass.rows_of(moe.partial, top_k * dim),
            out: out.view,
            store: out.store,
        });
    }
}

impl SharedExpert {
    fn load(
        loader: &mut Loader<'_>,
        path: &str,
        spec: SharedExpertSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let mlp = Dense::load(loader, path, spec.width, hidden)?;
        let gate = spec.gated.then(|| loader.matrix(&format!("{path}_gate"), [1, hidden]));
        Ok(Self { mlp, gate: gate.transpose()? })
    }
}

impl Stacks {
    /// Accepts the layouts found in files: stacked per projection (`switch_mlp`, `switch_glu`), gate and up
    /// fused (as the family calls them), and one module per expert.
    fn load(
        loader: &mut Loader<'_>,
        path: &str,
        spec: &MoeSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let MoeSpec { experts, ffn, .. } = *spec;
        let whole = |weight, stride| ExpertRows { weight, first: 0, stride };
        let names = loader.names;
        let [fused, downs] = names.stacks.map(|stack| format!("{path}.{stack}"));
        let alone = names.expert[0] == names.expert[1];
        if loader.checkpoint.has_matrix(&fused) {
            let rows = if alone { ffn } else { 2 * ffn };
            let both = loader.checkpoint.parts(&fused, &[experts, rows, hidden])?;
            let weight = loader.upload(&fused, both)?;
            let down = loader.checkpoint.parts(&downs, &[experts, hidden, ffn])?;
            return Ok(Self {
                gate: ExpertRows { weight, first: 0, stride: rows },
                up: ExpertRows { weight, first: rows - ffn, stride: rows },
                down: whole(loader.upload(&downs, down)?, hidden),
            });
        }
        let own = names.expert;
        let mut stack = |number: usize, [rows, cols]: [usize; 2]| {
            let name = ["gate_proj", "up_proj", "down_proj"][number];
            // Without gates MLX numbers the layers.
            let numbered = if alone { ["", "fc1", "fc2"][number] } else { name };
            let stacks =
                [("switch_mlp", name), ("experts.switch_glu", name), ("switch_mlp", numbered)];
            let stacks = stacks.map(|(stack, name)| format!("{path}.{stack}.{name}"));
            let found = stacks.iter().find(|path| loader.checkpoint.has_matrix(path));
            let label = found.unwrap_or(&stacks[0]).clone();
            let parts = if let Some(together) = found {
                loader.checkpoint.parts(together, &[experts, rows, cols])?
            } else {
                let one = |e: usize| {
                    let module = format!("{path}.experts.{e}.{}", own[number]);
                    loader.checkpoint.parts(&module, &[rows, cols])
                };
                let parts = (0..experts).map(one).collect::<Result<Vec<MatrixParts>, _>>()?;
                MatrixParts::stack(&parts).ok_or_else(|| {
                    ModelError::Layout(format!(
                        "{path}.experts: {name} differs in format by expert"
                    ))
                })?
            };
            Ok::<_, ModelError>(whole(loader.upload(&label, parts)?, rows))
        };
        let gate = stack(if alone { 1 } else { 0 }, [ffn, hidden])?;
        let up = if alone { gate } else { stack(1, [ffn, hidden])? };
        Ok(Self { gate, up, down: stack(2, [hidden, ffn])? })
    }
}
