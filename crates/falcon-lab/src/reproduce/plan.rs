//! All runs of an experiment. Every configuration is resolved before the first run starts, so that an error does not
//! surface hours later.

use std::path::{Path, PathBuf};

use falcon_lm::config::{Layer, RunConfig, RunConfigError};

use super::error::ExperimentError;
use super::row::{TableRow, split_list};
use super::scale::ExperimentScale;
use super::search::{SEARCH_SEED, Search, SearchPoint};

/// What to run, and where.
#[derive(Clone, Debug)]
pub struct ExperimentOptions {
    /// The scale, which determines what is not set here.
    pub scale: &'static ExperimentScale,
    /// Comma-separated lists of rows, in the form of [`TableRow::parse`]; those of the scale if empty.
    pub models: Vec<String>,
    /// The number of seeds of each row.
    pub seeds: Option<u64>,
    /// The number of training steps of all rows.
    pub steps: Option<u64>,
    /// Settings of all rows, in the form of `falcon train --set`.
    pub set: Vec<String>,
    /// Variants to make of each model.
    pub ablation: Option<Ablation>,
    /// The folder for the runs and the results.
    pub output: PathBuf,
    /// Earlier records whose rows are taken instead of trained again, in addition to the record in the output folder.
    pub continue_from: Vec<PathBuf>,
    /// The number of threads of all concurrent runs together.
    pub threads: usize,
    /// The number of concurrent runs; one for each thread if not set, or a single one if a model is large.
    pub jobs: Option<usize>,
    /// Whether runs are refused that are estimated to need more memory than is available.
    pub check_memory: bool,
    /// The command that repeats the experiment, for the record.
    pub command: String,
}

/// Variants of each model that differ in one respect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ablation {
    /// The four combinations of alignment (which key a value is written to) and of reading before or after the write.
    Timing,
}

/// A model and the rows that are variants of it. They share one search, because they differ in one respect only.
#[derive(Clone)]
pub(super) struct Family {
    pub base: TableRow,
    pub rows: Vec<TableRow>,
}

/// The models asked for, or those of the scale, without duplicates.
pub(super) fn families(options: &ExperimentOptions) -> Result<Vec<Family>, ExperimentError> {
    let mut models: Vec<&str> = Vec::new();
    let given = options.models.iter().flat_map(|models| split_list(models));
    let default = options.scale.models.iter().copied().filter(|_| options.models.is_empty());
    for model in given.chain(default) {
        if !models.contains(&model) {
            models.push(model);
        }
    }
    if options.ablation.is_some() {
        // Attention has no memory whose timing could vary.
        models.retain(|model| !model.starts_with("transformer"));
    }
    if models.is_empty() {
        return Err(ExperimentError::NothingToAblate);
    }
    let rows = |model: &str| match options.ablation {
        None => vec![TableRow::parse(model)],
        Some(Ablation::Timing) => timings(model),
    };
    Ok(models.into_iter().map(|model| Family { base: TableRow::parse(model), rows: rows(model) }).collect())
}

/// The rows of [`Ablation::Timing`] for a model.
fn timings(model: &str) -> Vec<TableRow> {
    let cases = [("next", "after"), ("same", "after"), ("next", "before"), ("same", "before")];
    let row = |(align, read)| TableRow::parse(&format!("{model}+model.align={align}+model.read={read}"));
    cases.into_iter().map(row).collect()
}

/// A run to be trained.
#[derive(Clone)]
pub(super) struct PlannedRun {
    pub row: TableRow,
    /// Its name in progress lines and errors.
    pub title: String,
    pub config: RunConfig,
    pub folder: PathBuf,
}

/// The error that the configuration of a row is invalid. It names the row, because its settings may be those of the
/// command, which do not fit this row alone.
fn in_row(row: &TableRow) -> impl Fn(RunConfigError) -> ExperimentError {
    |source| ExperimentError::Row { title: row.name.clone(), source: Box::new(source.into()) }
}

/// Makes the configuration of a row and a seed; the layers are settings of all rows.
pub(super) type Configure<'a> = dyn Fn(&TableRow, u64, &[Layer]) -> Result<RunConfig, RunConfigError> + Sync + 'a;

/// The search of a family.
pub(super) struct FamilySearch {
    pub family: Family,
    /// The points of the grid; empty if there is no search.
    pub grid: Vec<SearchPoint>,
    /// A run for every point; empty if there is only one point, which needs no trial.
    pub trials: Vec<PlannedRun>,
}

/// All runs of an experiment.
pub(super) struct ExperimentPlan<'a> {
    seeds: u64,
    output: &'a Path,
    more: Vec<Layer>,
    config: Box<Configure<'a>>,
    pub searches: Vec<FamilySearch>,
    /// Every seed of every row, with the configuration that it has without a search.
    pub runs: Vec<PlannedRun>,
}

impl<'a> ExperimentPlan<'a> {
    /// Resolves the configurations of all runs, including every point of a search.
    pub fn new(
        families: Vec<Family>,
        options: &'a ExperimentOptions,
        search: Option<Search>,
        config: Box<Configure<'a>>,
    ) -> Result<Self, ExperimentError> {
        let mut more: Vec<Layer> = options.set.iter().map(|set| Layer::set(set)).collect::<Result<_, _>>()?;
        more.extend(options.steps.map(|steps| Layer::of("train", "steps", steps)));
        let seeds = options.seeds.unwrap_or(options.scale.seeds);
        let output = &options.output;
        let mut plan = Self { seeds, output, more, config, searches: Vec::new(), runs: Vec::new() };
        for family in families {
            plan.runs.extend(plan.runs_of(&family, None)?);
            let (grid, trials) = match &search {
                Some(search) => plan.trials_of(&family, search)?,
                None => (Vec::new(), Vec::new()),
            };
            plan.searches.push(FamilySearch { family, grid, trials });
        }
        Ok(plan)
    }

    /// Every seed of every row of a family, with the values of a point of the search, if any.
    pub fn runs_of(
        &self,
        family: &Family,
        point: Option<&SearchPoint>,
    ) -> Result<Vec<PlannedRun>, ExperimentError> {
        let more: Vec<Layer> = self.more.iter().cloned().chain(point.iter().flat_map(|p| p.layers())).collect();
        let mut runs = Vec::new();
        for row in &family.rows {
            for seed in 0..self.seeds {
                runs.push(PlannedRun {
                    row: row.clone(),
                    title: format!("{}, seed {seed}", row.name),
                    config: (self.config)(row, seed, &more).map_err(in_row(row))?,
                    folder: self.output.join(folder_name(&row.name, seed)),
                });
            }
        }
        Ok(runs)
    }

    /// The configuration of any row and seed in this experiment, without a search.
    pub fn config_of(&self, row: &TableRow, seed: u64) -> Result<RunConfig, RunConfigError> {
        (self.config)(row, seed, &self.more)
    }

    /// The grid of a family's search, and a short run for each point.
    fn trials_of(
        &self,
        family: &Family,
        search: &Search,
    ) -> Result<(Vec<SearchPoint>, Vec<PlannedRun>), ExperimentError> {
        let row = &family.base;
        let full = (self.config)(row, SEARCH_SEED, &self.more).map_err(in_row(row))?;
        let grid = search.grid(row, &self.more, &full).map_err(in_row(row))?;
        let mut trials = Vec::new();
        for point in &grid {
            // Finds errors in the full runs of this point before anything is trained.
            self.runs_of(family, Some(point))?;
            let more: Vec<Layer> = self.more.iter().cloned().chain(search.layers(point, &full)).collect();
            let SearchPoint { lr, initializer_range } = point;
            let name = format!("search/{}-lr{lr:e}-emb{initializer_range}", file_name(&row.name));
            trials.push(PlannedRun {
                row: row.clone(),
                title: format!("search for {}, lr {lr:e}, embedding {initializer_range}", row.name),
                config: (self.config)(row, SEARCH_SEED, &more).map_err(in_row(row))?,
                folder: self.output.join(name),
            });
        }
        Ok(if grid.len() > 1 { (grid, trials) } else { (grid, Vec::new()) })
    }
}

/// The name of the folder of a row and seed.
pub(super) fn folder_name(row: &str, seed: u64) -> String {
    format!("{}-s{seed}", file_name(row))
}

/// The name of a row as part of a file name.
fn file_name(row: &str) -> String {
    row.replace([' ', '/'], "-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::language::{Corpus, SCALES, config};

    fn options(scale: &'static ExperimentScale) -> ExperimentOptions {
        ExperimentOptions {
            scale,
            models: Vec::new(),
            seeds: None,
            steps: None,
            set: Vec::new(),
            ablation: None,
            output: "out".into(),
            continue_from: Vec::new(),
            threads: 1,
            jobs: None,
            check_memory: true,
            command: String::new(),
        }
    }

    fn plan(options: &ExperimentOptions) -> ExperimentPlan<'_> {
        let corpus = Corpus { train: "a.txt".into(), valid: "b.txt".into(), tokenizer: "bytes".into() };
        let config = Box::new(move |row: &_, seed, more: &_| config(&corpus, options.scale, row, seed, more));
        ExperimentPlan::new(families(options).unwrap(), options, Some(Search::SMALL), config).unwrap()
    }

    #[test]
    fn every_model_has_the_same_search() {
        let small = &SCALES[1];
        assert_eq!(small.search, Some(Search::SMALL));
        let all = options(small);
        let all = plan(&all);
        assert_eq!((all.searches.len(), all.runs.len()), (12, 36));
        for FamilySearch { family, grid, trials } in &all.searches {
            assert_eq!((grid, trials.len()), (&all.searches[0].grid, 6), "{}", family.base.name);
            for (point, trial) in grid.iter().zip(trials) {
                let train = &trial.config.train;
                let values = (train.schedule.lr, trial.config.model.initializer_range);
                assert_eq!(values, (point.lr, point.initializer_range));
                assert_eq!((train.seed, train.schedule.steps, train.schedule.warmup), (SEARCH_SEED, 250, 12));
            }
        }
        let first = &all.searches[1].trials[0];
        assert_eq!(first.folder, Path::new("out/search/retnet-lr2e-3-emb0.005"));
        // The search changes nothing but the two values of the full runs.
        let FamilySearch { family, grid, .. } = &all.searches[1];
        let found = &all.runs_of(family, Some(&grid[4])).unwrap()[0];
        let without = all.runs.iter().find(|run| run.folder == found.folder).unwrap();
        let differences: Vec<String> =
            without.config.differences(&found.config).into_iter().map(|(key, ..)| key).collect();
        assert_eq!(differences, ["model.initializer_range", "train.lr"]);
        let some = ExperimentOptions {
            set: vec!["train.lr=3e-3".into()],
            models: vec!["retnet,mamba2+model.initializer_range=0.5".into()],
            ..options(small)
        };
        let some = plan(&some);
        let counts: Vec<usize> = some.searches.iter().map(|search| search.trials.len()).collect();
        assert_eq!(counts, [2, 0], "a single point needs no trial");
        assert_eq!(some.searches[1].grid, [SearchPoint { lr: 3e-3, initializer_range: 0.5 }]);
    }

    /// Every model that has a memory has all four timings, and they share one search.
    #[test]
    fn timings_share_a_search() {
        let options =
            ExperimentOptions { ablation: Some(Ablation::Timing), seeds: Some(1), ..options(&SCALES[1]) };
        let plan = plan(&options);
        assert_eq!((plan.searches.len(), plan.runs.len()), (11, 44));
        assert!(plan.searches.iter().all(|search| search.family.rows.len() == 4 && search.trials.len() == 6));
        let names: Vec<&str> = plan.runs[..4].iter().map(|run| run.row.name.as_str()).collect();
        let expected = [("next", "after"), ("same", "after"), ("next", "before"), ("same", "before")];
        assert_eq!(names, expected.map(|(align, read)| format!("retnet align={align} read={read}")));
        assert_eq!(plan.searches[0].family.base.name, "retnet");
    }
}
