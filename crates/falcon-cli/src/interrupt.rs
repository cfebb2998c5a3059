//! Ctrl-C and requests to terminate: the first one stops gently, the second at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// What is done when a run is asked to stop.
pub(crate) const SAVING: &str = "saving after this step";

/// Whether a signal has come.
static STOP: AtomicBool = AtomicBool::new(false);
/// The code to exit with, of the first signal that came.
static CODE: AtomicU8 = AtomicU8::new(INTERRUPTED);
/// Stopped by Ctrl-C, as shells have it: 128 and the number of the signal.
const INTERRUPTED: u8 = 130;

/// The code that a program exits with that was asked to stop: 130 after Ctrl-C, 143 after a request to terminate.
pub fn exit_code() -> u8 {
    CODE.load(Ordering::SeqCst)
}

/// What the program does when it is asked to stop, in words. It changes as the work goes on.
static THEN: Mutex<&str> = Mutex::new("stopping");

/// Listens for Ctrl-C and requests to terminate. The first one makes the returned flag true and prints what is done
/// `then`; the second one ends the program at once. On systems without Unix signals, the first one ends it, too.
pub(crate) fn stop_on_interrupt(then: &'static str) -> &'static AtomicBool {
    *THEN.lock().expect("nobody panics while holding it") = then;
    #[cfg(unix)]
    unix::listen();
    &STOP
}

/// Makes writing beyond the size that files may have (`ulimit -f`) an error, which can be reported. By default the
/// system ends the program without a word.
pub fn report_file_size_limit() {
    #[cfg(unix)]
    {
        let exceeded = std::sync::Arc::new(AtomicBool::new(false));
        // Without a handler the limit ends the program, as before.
        let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, exceeded);
    }
}

#[cfg(unix)]
mod unix {
    use std::io::{self, Write};
    use std::sync::atomic::Ordering;
    use std::sync::{Once, mpsc};

    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    use super::{CODE, STOP, THEN};

    /// Waits for signals in a thread. Where none can be had, the system ends the program with the first signal.
    pub fn listen() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let (installed, ready) = mpsc::channel();
            let thread = std::thread::Builder::new().spawn(move || {
                if let Ok(signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) {
                    let _ = installed.send(());
                    wait(signals);
                }
            });
            if thread.is_ok() {
                // It fails if there are no handlers, and then there is nothing to wait for.
                let _ = ready.recv();
            }
        });
    }

    fn wait(mut signals: Signals) {
        for signal in &mut signals {
            let code = 128 + signal;
            if STOP.load(Ordering::SeqCst) {
                std::process::exit(code);
            }
            CODE.store(u8::try_from(code).unwrap_or(u8::MAX), Ordering::SeqCst);
            STOP.store(true, Ordering::SeqCst);
            let then = *THEN.lock().expect("nobody panics while holding it");
            let _ = writeln!(io::stderr(), "\n{then}; once more to stop at once");
        }
    }
}
