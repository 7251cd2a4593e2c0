use super::linear::dot;
use super::moe::best_first;
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::ClusterHead;

/// The token that a number in a list of members stands for.
pub(crate) fn member(number: f32, limit: usize) -> Result<usize, BackendError> {
    // A number that is not a nonnegative integer is no index.
    let whole = number >= 0.0 && number.fract() == 0.0;
    let index = if whole { number as usize } else { usize::MAX };
    let (op, operand) = ("cluster_head", "members");
    if index < limit { Ok(index) } else { Err(BackendError::Index { op, operand, index, limit }) }
}

pub(crate) fn cluster_head(memory: &mut Memory, op: ClusterHead) -> Result<(), BackendError> {
    memory.lend([op.out], |memory, [out]| {
        let (head, members) = (memory.matrix(op.head), memory.matrix(op.members));
        let (vocabulary, k) = (head.rows(), head.cols());
        let (mut line, mut list) = (vec![0.0; k], vec![0.0; members.cols()]);
        let rows = memory.f32(op.x).chunks_exact(k);
        let scores = memory.f32(op.scores).chunks_exact(op.clusters);
        let outs = out.f32_mut(op.out).chunks_exact_mut(vocabulary);
        for ((x, scores), out) in rows.zip(scores).zip(outs) {
            let mut logits = Vec::new();
            for &cluster in &best_first(scores)[..op.top_k] {
                members.decode_row(cluster as usize, &mut list);
                for &number in &list {
                    let token = member(number, vocabulary)?;
                    head.decode_row(token, &mut line);
                    logits.push((token, dot(x, &line)));
                }
            }
            let least = logits.iter().map(|(_, logit)| *logit).fold(f32::INFINITY, f32::min);
            out.fill(least - 1.0);
            logits.into_iter().for_each(|(token, logit)| out[token] = logit);
        }
        Ok(())
    })
}
