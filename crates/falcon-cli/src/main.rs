//! The `falcon` program.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use falcon_cli::args::{Cli, Command, ScanArgs};
use falcon_cli::bench;
use falcon_cli::eval::{self, EvalError};
use falcon_cli::generate::{self, GenerateError};
use falcon_cli::memory;
use falcon_cli::progress::with_spinner;
use falcon_cli::report::{self, ReportCommandError};
use falcon_cli::reproduce::{self, ReproduceError};
use falcon_cli::scan::{self, Options, Report, ScanError};
use falcon_cli::tokenizer::{self, TokenizerCommandError};
use falcon_cli::train::{self, TrainCommandError};
use falcon_lm::train::Outcome;

/// Bad input or an output that cannot be written; clap uses the same for bad arguments.
const FAILURE: u8 = 2;
/// Stopped by Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    memory::keep_freed();
    match Cli::parse().command {
        Command::Reproduce(args) => match reproduce::run(&args) {
            Ok(Outcome::Interrupted) => ExitCode::from(INTERRUPTED),
            Ok(Outcome::Finished) => ExitCode::SUCCESS,
            Err(ReproduceError::Output(error)) if is_closed(&error) => ExitCode::SUCCESS,
            Err(error) => fail(error),
        },
        Command::Train(args) => match train::run(&args) {
            Ok(Some(Outcome::Interrupted)) => ExitCode::from(INTERRUPTED),
            Ok(_) => ExitCode::SUCCESS,
            Err(TrainCommandError::Output(error)) if is_closed(&error) => ExitCode::SUCCESS,
            Err(error) => fail(error),
        },
        Command::Eval(args) => match eval::run(&args) {
            Ok(Outcome::Interrupted) => ExitCode::from(INTERRUPTED),
            Ok(Outcome::Finished) => ExitCode::SUCCESS,
            Err(EvalError::Output(error)) if is_closed(&error) => ExitCode::SUCCESS,
            Err(error) => fail(error),
        },
        Command::Generate(args) => match generate::run(&args) {
            Ok(Outcome::Interrupted) => ExitCode::from(INTERRUPTED),
            Ok(Outcome::Finished) => ExitCode::SUCCESS,
            Err(GenerateError::Output(error)) if is_closed(&error) => ExitCode::SUCCESS,
            Err(error) => fail(error),
        },
        Command::Tokenizer(args) => match tokenizer::run(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(TokenizerCommandError::Output(error)) if is_closed(&error) => ExitCode::SUCCESS,
            Err(error) => fail(error),
        },
        Command::Report(args) => match report::run(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(ReportCommandError::Output(error)) if is_closed(&error) => ExitCode::SUCCESS,
            Err(error) => fail(error),
        },
        Command::Scan(args) => match scan(&args) {
            Ok(report) => print(&args, &report),
            Err(error) => {
                let input =
                    if error.names_a_path() { String::new() } else { format!("{}: ", args.input.display()) };
                fail(format_args!("{input}{error}"))
            }
        },
        Command::Bench(args) => match bench::run(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
            Err(error) => fail(error),
        },
        Command::Completions(args) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "falcon", &mut script);
            match io::stdout().write_all(&script) {
                Err(error) if !is_closed(&error) => fail(format_args!("stdout: {error}")),
                _ => ExitCode::SUCCESS,
            }
        }
    }
}

/// Whether the reader of stdout has seen enough, which is no failure.
fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

fn fail(error: impl Display) -> ExitCode {
    // Nothing is left to do if stderr is gone.
    let _ = writeln!(io::stderr(), "error: {error}");
    ExitCode::from(FAILURE)
}

fn scan(args: &ScanArgs) -> Result<Report, ScanError> {
    let options = Options::from(args);
    let message = format!("scanning {}", args.input.display());
    with_spinner(&message, || scan::run_file(&args.input, &args.output, &options))
}

fn print(args: &ScanArgs, report: &Report) -> ExitCode {
    let line = if args.json { serde_json::to_string(report).map_err(io::Error::from) } else { Ok(human(report)) };
    match line.and_then(|line| writeln!(io::stdout(), "{line}")) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough; the file is written.
        Err(error) if is_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: the output is written, but stdout is not: {error}");
            ExitCode::from(FAILURE)
        }
    }
}

fn human(report: &Report) -> String {
    let summary = &report.summary;
    let form = match summary.chunk {
        Some(chunk) => format!("{} {chunk}", summary.form),
        None => summary.form.into(),
    };
    let sequences = match summary.sequences {
        1 => String::new(),
        n => format!(" in {n} sequences"),
    };
    format!(
        "{}: T={}{sequences} H={} dx={} dv={}, {form}, {}{}, {:.3} s -> {}",
        summary.variant,
        summary.tokens,
        summary.heads,
        summary.dim_k,
        summary.dim_v,
        summary.dtype,
        if summary.grad { " with gradients" } else { "" },
        report.seconds,
        report.output.display(),
    )
}
