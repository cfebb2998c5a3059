//! What is to be run: found wrong before anything is.

use std::path::{Path, PathBuf};

use falcon_lm::config::{Layer, RunConfig, RunConfigError};
use falcon_lm::reproduce::{Point, Row, SEARCH_SEED, Scale, Search};

use super::{Ablation, ReproduceError, RowsArgs};

/// A model that was asked for, and the rows that are made of it. A search is done once for all of them: they
/// differ in one thing only.
#[derive(Clone)]
pub(super) struct Family {
    pub base: Row,
    pub rows: Vec<Row>,
}

/// The rows of a list with commas between them; those in brackets are within a value.
fn apart(list: &str) -> Vec<&str> {
    let mut depth = 0usize;
    let split = |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    list.split(split).collect()
}

/// The models asked for, or the scale's, each once.
pub(super) fn families(args: &RowsArgs, scale: &Scale) -> Result<Vec<Family>, ReproduceError> {
    let mut models: Vec<&str> = Vec::new();
    let given = args.models.iter().flat_map(|models| apart(models));
    let of_scale = scale.models.iter().copied().filter(|_| args.models.is_empty());
    for model in given.chain(of_scale) {
        if !models.contains(&model) {
            models.push(model);
        }
    }
    if args.ablation.is_some() {
        // Attention has no memory to be written earlier or later.
        models.retain(|model| !model.starts_with("transformer"));
    }
    if models.is_empty() {
        return Err(ReproduceError::NothingToAblate);
    }
    let rows = |model: &str| match args.ablation {
        None => vec![Row::of(model)],
        Some(Ablation::Timing) => timings(model),
    };
    Ok(models.into_iter().map(|model| Family { base: Row::of(model), rows: rows(model) }).collect())
}

/// Which key meets a value, and when a token reads: all four.
fn timings(model: &str) -> Vec<Row> {
    let cases = [("next", "after"), ("same", "after"), ("next", "before"), ("same", "before")];
    let row = |(align, read)| Row::of(&format!("{model}+model.align={align}+model.read={read}"));
    cases.into_iter().map(row).collect()
}

/// A run to be.
#[derive(Clone)]
pub(super) struct Planned {
    pub row: Row,
    /// What it is called while it goes and when it fails.
    pub title: String,
    pub config: RunConfig,
    pub folder: PathBuf,
}

/// Makes the configuration of a row and a seed, with more layers over it.
pub(super) type Configure<'a> = dyn Fn(&Row, u64, &[Layer]) -> Result<RunConfig, RunConfigError> + Sync + 'a;

/// What is searched for, for a model and the rows that are made of it.
pub(super) struct FamilySearch {
    pub family: Family,
    /// Empty if nothing is searched for.
    pub grid: Vec<Point>,
    /// A run for every point; none if there is but one point, which needs no trial.
    pub trials: Vec<Planned>,
}

/// All runs of an experiment.
pub(super) struct Plan<'a> {
    seeds: u64,
    output: &'a Path,
    more: Vec<Layer>,
    config: Box<Configure<'a>>,
    pub searches: Vec<FamilySearch>,
    /// Every seed of every row, as it is without a search.
    pub runs: Vec<Planned>,
}

impl<'a> Plan<'a> {
    /// A wrong run should not be found after an hour: all of them are resolved here, with every point of a search.
    pub fn new(
        families: Vec<Family>,
        args: &RowsArgs,
        scale: &Scale,
        search: Option<Search>,
        output: &'a Path,
        config: Box<Configure<'a>>,
    ) -> Result<Self, ReproduceError> {
        let mut more: Vec<Layer> = args.set.iter().map(|set| Layer::set(set)).collect::<Result<_, _>>()?;
        more.extend(args.steps.map(|steps| Layer::of("train", "steps", steps)));
        let seeds = args.seeds.unwrap_or(scale.seeds);
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

    /// Every seed of every row, at a point of a search if there was one.
    pub fn runs_of(&self, family: &Family, point: Option<&Point>) -> Result<Vec<Planned>, ReproduceError> {
        let more: Vec<Layer> = self.more.iter().cloned().chain(point.iter().flat_map(|p| p.layers())).collect();
        let mut runs = Vec::new();
        for row in &family.rows {
            for seed in 0..self.seeds {
                runs.push(Planned {
                    row: row.clone(),
                    title: format!("{}, seed {seed}", row.name),
                    config: (self.config)(row, seed, &more)?,
                    folder: self.output.join(folder_name(&row.name, seed)),
                });
            }
        }
        Ok(runs)
    }

    /// The configuration of any row and seed in this experiment, without a search.
    pub fn config_of(&self, row: &Row, seed: u64) -> Result<RunConfig, RunConfigError> {
        (self.config)(row, seed, &self.more)
    }

    /// The points of a model's search, and a short run of each.
    fn trials_of(&self, family: &Family, search: &Search) -> Result<(Vec<Point>, Vec<Planned>), ReproduceError> {
        let row = &family.base;
        let full = (self.config)(row, SEARCH_SEED, &self.more)?;
        let grid = search.grid(row, &self.more, &full)?;
        let mut trials = Vec::new();
        for point in &grid {
            self.runs_of(family, Some(point))?;
            let more: Vec<Layer> = self.more.iter().cloned().chain(search.layers(point, &full)).collect();
            let Point { lr, initializer_range } = point;
            trials.push(Planned {
                row: row.clone(),
                title: format!("search for {}, lr {lr:e}, embedding {initializer_range}", row.name),
                config: (self.config)(row, SEARCH_SEED, &more)?,
                folder: self.output.join(format!("search/{}-lr{lr:e}-emb{initializer_range}", plain(&row.name))),
            });
        }
        Ok(if grid.len() > 1 { (grid, trials) } else { (grid, Vec::new()) })
    }
}

/// The name of the folder of a row and seed.
pub(super) fn folder_name(row: &str, seed: u64) -> String {
    format!("{}-s{seed}", plain(row))
}

/// The name of a row as a part of a file name.
fn plain(row: &str) -> String {
    row.replace([' ', '/'], "-")
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use falcon_lm::reproduce::language::{Corpus, SCALES, config};

    use super::*;
    use crate::args::{Cli, Command};
    use crate::reproduce::ReproduceCommand;

    fn rows(words: &[&str]) -> Result<RowsArgs, clap::Error> {
        let all = ["falcon", "reproduce", "lm", "--train", "a.txt", "--valid", "b.txt"].iter().chain(words);
        let Command::Reproduce(args) = Cli::try_parse_from(all)?.command else { panic!("another command") };
        let ReproduceCommand::Lm(args) = args.command else { panic!("another experiment") };
        Ok(args.rows)
    }

    fn plan(words: &[&str], scale: &'static Scale, check: impl Fn(Plan<'_>)) {
        let args = rows(words).unwrap();
        let corpus = Corpus { train: "a.txt".into(), valid: "b.txt".into(), tokenizer: "bytes".into() };
        let config = Box::new(|row: &_, seed, more: &_| config(&corpus, scale, row, seed, more));
        let families = families(&args, scale).unwrap();
        check(Plan::new(families, &args, scale, Some(Search::SMALL), Path::new("out"), config).unwrap());
    }

    #[test]
    fn rows_are_set_apart_by_commas() {
        let list = "retnet,falcon-1a.3+model.lambda_init=[0.01,0.1]+model.window=2,mamba2";
        assert_eq!(apart(list), ["retnet", "falcon-1a.3+model.lambda_init=[0.01,0.1]+model.window=2", "mamba2"]);
    }

    #[test]
    fn every_model_has_the_same_search() {
        let small = &SCALES[1];
        assert_eq!(small.search, Some(Search::SMALL));
        plan(&[], small, |plan| {
            assert_eq!((plan.searches.len(), plan.runs.len()), (12, 36));
            for FamilySearch { family, grid, trials } in &plan.searches {
                assert_eq!((grid, trials.len()), (&plan.searches[0].grid, 6), "{}", family.base.name);
                for (point, trial) in grid.iter().zip(trials) {
                    let train = &trial.config.train;
                    assert_eq!(
                        (train.schedule.lr, trial.config.model.initializer_range),
                        (point.lr, point.initializer_range)
                    );
                    assert_eq!((train.seed, train.schedule.steps, train.schedule.warmup), (SEARCH_SEED, 250, 12));
                }
            }
            let first = &plan.searches[1].trials[0];
            assert_eq!(first.folder, Path::new("out/search/retnet-lr2e-3-emb0.005"));
            // The full runs differ from what they are without a search in the two values.
            let FamilySearch { family, grid, .. } = &plan.searches[1];
            let found = &plan.runs_of(family, Some(&grid[4])).unwrap()[0];
            let without = plan.runs.iter().find(|run| run.folder == found.folder).unwrap();
            let differences: Vec<String> =
                without.config.differences(&found.config).into_iter().map(|(key, ..)| key).collect();
            assert_eq!(differences, ["model.initializer_range", "train.lr"]);
        });
        plan(&["--set", "train.lr=3e-3", "-m", "retnet,mamba2+model.initializer_range=0.5"], small, |plan| {
            let counts: Vec<usize> = plan.searches.iter().map(|search| search.trials.len()).collect();
            assert_eq!(counts, [2, 0], "one point needs no trial");
            assert_eq!(plan.searches[1].grid, [Point { lr: 3e-3, initializer_range: 0.5 }]);
        });
    }

    /// Every model that has a memory has all four timings, and one search for them.
    #[test]
    fn timings_share_a_search() {
        plan(&["--ablation", "timing", "--seeds", "1"], &SCALES[1], |plan| {
            assert_eq!((plan.searches.len(), plan.runs.len()), (11, 44));
            assert!(plan.searches.iter().all(|search| search.family.rows.len() == 4 && search.trials.len() == 6));
            let names: Vec<&str> = plan.runs[..4].iter().map(|run| run.row.name.as_str()).collect();
            let expected = [("next", "after"), ("same", "after"), ("next", "before"), ("same", "before")];
            assert_eq!(names, expected.map(|(align, read)| format!("retnet align={align} read={read}")));
            assert_eq!(plan.searches[0].family.base.name, "retnet");
        });
    }

    /// No reported run is one that something was chosen by.
    #[test]
    fn no_run_has_the_seed_of_the_search() {
        assert!(rows(&["--seeds", "1001"]).is_err());
        let most = rows(&["--seeds", "1000"]).unwrap().seeds.unwrap();
        assert!((0..most).all(|seed| seed != SEARCH_SEED));
    }
}
