//! From a checkpoint and options to a folder with a new one.

use crate::folder::{Identity, TargetFolder};
use crate::layout::Shard;
use crate::report::Parameters;
use crate::text::SideFiles;
use crate::write::{ShardEnd, ShardWriter};
use crate::{Keep, QuantizeError, QuantizeOptions, QuantizeReport, WriteControl};
use crate::{files, layout, plan, policy, report, text, write};
use forerun_model::{Blueprint, MlxForm};
use forerun_weights::Checkpoint;
use std::path::Path;
use std::time::Instant;

/// A quantisation of which everything is settled.
pub struct Quantizer<'a> {
    checkpoint: &'a Checkpoint,
    threads: usize,
    mlx: MlxForm,
    parameters: Parameters,
    shards: Vec<Shard>,
    text: SideFiles,
    folder: TargetFolder,
    /// What is known of it by now.
    report: QuantizeReport,
    started: Instant,
}

impl<'a> Quantizer<'a> {
    /// Plans the new checkpoint and makes its folder ready.
    ///
    /// # Errors
    /// When the source cannot become a checkpoint of MLX, a pattern of `keep` matches nothing, or the folder must not
    /// be touched.
    pub fn prepare(
        source: &'a Blueprint,
        target: &Path,
        options: &QuantizeOptions,
    ) -> Result<Self, QuantizeError> {
        let started = Instant::now();
        let (checkpoint, storage) = (&source.checkpoint, source.storage());
        let plan = plan::plan(checkpoint, &storage)?;
        let choices = policy::choose(&plan, options.base, &options.keep)?;
        let parameters = report::parameters(&plan);
        let (text, no_tokenizer) = text::prepare(checkpoint);
        let mut report =
            QuantizeReport::planned(checkpoint, &plan, &choices, options.base, parameters);
        let shards = layout::shards(checkpoint, plan, &choices, options.shard_bytes as u64)?;
        report.set_files(&shards);
        report.no_tokenizer = no_tokenizer;
        report.target = target.display().to_string();
        let keeps: Vec<String> = options.keep.iter().map(Keep::to_string).collect();
        let settings =
            format!("{}; files of {}; keep {keeps:?}", options.base, options.shard_bytes);
        let identity = Identity::new(checkpoint, &shards, settings);
        let folder = TargetFolder::prepare(target, checkpoint, &identity, options.force)?;
        let (threads, mlx) = (options.threads, storage.mlx);
        Ok(Self { checkpoint, threads, mlx, parameters, shards, text, folder, report, started })
    }

    /// What to know before work begins, a line each.
    pub fn remarks(&self) -> Vec<String> {
        let mut lines = self.report.remarks();
        if self.folder.resumes {
            let done = self.shards.iter().filter(|s| write::is_written(&self.folder.path, s));
            lines.push(format!("going on after {} of {} files", done.count(), self.shards.len()));
        }
        lines
    }

    /// Bytes of all weight files.
    pub fn bytes(&self) -> u64 {
        self.report.bytes_after
    }

    /// Writes the files that are not there yet. `None` when the caller cancelled: the same options and folder go on
    /// from there.
    ///
    /// # Errors
    /// When the source cannot be read or the target cannot be written.
    pub fn write(
        self,
        watch: &mut WriteControl<'_>,
    ) -> Result<Option<QuantizeReport>, QuantizeError> {
        let Some(resumed_files) = self.write_shards(watch)? else { return Ok(None) };
        let Self { checkpoint, mlx, parameters, shards, text, folder, report, started, .. } = self;
        text.write(&folder.path)?;
        if shards.iter().any(Shard::is_sidecar) {
            files::write_manifest(&folder.path)?;
        }
        files::write_index(&folder.path, &shards, parameters.trunk)?;
        files::write_config(&folder.path, checkpoint, mlx, &report.quantization)?;
        folder.finish()?;
        Ok(Some(QuantizeReport {
            resumed_files,
            seconds: started.elapsed().as_secs_f64(),
            ..report
        }))
    }

    /// How many files were there already, or `None` when the caller cancelled.
    fn write_shards(&self, watch: &mut WriteControl<'_>) -> Result<Option<usize>, QuantizeError> {
        let folder = &self.folder.path;
        let mut writer =
            ShardWriter { checkpoint: self.checkpoint, folder, threads: self.threads, watch };
        let mut there = 0;
        for shard in &self.shards {
            if self.folder.resumes && write::is_written(folder, shard) {
                there += 1;
                (writer.watch.progress)(shard.bytes);
            } else if writer.write(shard)? == ShardEnd::Interrupted {
                return Ok(None);
            }
        }
        Ok(Some(there))
    }
}
