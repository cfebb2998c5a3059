//! The `falcon` program.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use falcon_cli::args::{Cli, Command, ScanArgs};
use falcon_cli::progress::with_spinner;
use falcon_cli::scan::{self, Report, ScanFileError};
use falcon_cli::{bench, eval, export, generate, interrupt, memory, report, reproduce, tokenizer, train};
use falcon_lm::train::Outcome;
use falcon_scan::Options;

/// Bad input or an output that cannot be written; clap uses the same for bad arguments.
const FAILURE: u8 = 2;

fn main() -> ExitCode {
    memory::keep_freed();
    interrupt::report_file_size_limit();
    match Cli::parse().command {
        Command::Reproduce(args) => code(reproduce::run(&args)),
        Command::Train(args) => code(train::run(&args)),
        Command::Eval(args) => code(eval::run(&args)),
        Command::Generate(args) => code(generate::run(&args)),
        Command::Tokenizer(args) => code(tokenizer::run(&args).map(|()| Outcome::Finished)),
        Command::Export(args) => code(export::run(&args).map(|()| Outcome::Finished)),
        Command::Report(args) => code(report::run(&args).map(|()| Outcome::Finished)),
        Command::Bench(args) => code(bench::run(&args).map(|()| Outcome::Finished)),
        Command::Scan(args) => match scan(&args) {
            Ok(report) => print(&args, &report),
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

/// What the shell is told.
fn code(ended: Result<Outcome, impl Display>) -> ExitCode {
    match ended {
        Ok(Outcome::Finished) => ExitCode::SUCCESS,
        Ok(Outcome::Interrupted) => ExitCode::from(interrupt::exit_code()),
        Err(error) => fail(error),
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

fn scan(args: &ScanArgs) -> Result<Report, ScanFileError> {
    let options = Options::from(args);
    let message = format!("scanning {}", args.input.display());
    let threads = args.threads.map(usize::from);
    with_spinner(&message, || scan::run(&args.input, &args.output, &options, threads))
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
