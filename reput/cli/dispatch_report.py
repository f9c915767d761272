"""What ``reput dispatch`` reports of each query: settings, progress, result and losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from reput.cli.lines import counted
from reput.cli.long_running import MEGA, LineReporter, progress_line
from reput.cli.options import describe_settings
from reput.cli.recover import recovered_json, recovered_line
from reput.cli.show import drops_line

if TYPE_CHECKING:
    from streaming.kafka.arrivals import ArrivalCounts, KafkaArrivals
    from streaming.queries.dispatch_query import PreparedDispatch
    from streaming.queries.query_metrics import DispatchProgress


@dataclass
class Reporter(LineReporter):
    """Reports a dispatch: a live line on a terminal, structured log lines otherwise."""

    arrivals: KafkaArrivals | None = None

    def begin(self, prepared: PreparedDispatch) -> None:
        """Report the assumed settings, recoveries, and the start offset."""
        config, output = prepared.config, prepared.output
        self.say(
            "start",
            describe_settings(config),
            version=str(config.version),
            mappedFileSizeCommitLog=config.mapped_file_size_commit_log,
            mappedFileSizeConsumeQueue=config.mapped_file_size_consume_queue,
            messageIndexEnable=config.message_index_enable,
            reput_from_offset=output.progress.reput_from_offset,
            output=str(output.path),
        )
        if config.rocksdb_queues:
            text = f"the broker's own queues are not read ({config.rocksdb_queues})"
            self.say("warning", text, own_queues_not_read=config.rocksdb_queues)
        for recovered in output.recovered:
            fields = recovered_json(recovered)
            self.say("recovered", recovered_line(recovered), **fields | fields.pop("cut"))
        at, is_new = prepared.begin, output.progress.is_untouched
        how = text = "starts" if is_new else "resumes"
        if at < output.progress.reput_from_offset:
            how, text = "replays", "replays, which changes nothing,"
        self.say("position", f"{output.path}: {text} at offset {at:,}", begin_offset=at, how=how)
        self.begin_offset = at
        if not output.log.files:
            where = " and ".join(map(str, output.log.directories))
            self.say("warning", f"no commit log file in {where} yet", empty=where)

    def end_early(self, prepared: PreparedDispatch) -> None:
        """Report that the query was stopped before it started."""
        at = prepared.output.progress.reput_from_offset
        text = f"{prepared.output.path}: stopped before the query started, at offset {at}"
        self.say("stop", text, reput_from_offset=at)

    def report(self, progress: DispatchProgress) -> None:
        """Show one progress report."""
        text, fields = progress_line(progress, self.begin_offset), asdict(progress)
        if self.arrivals is not None:
            counts = self.arrivals.counts
            if counts.waiting or counts.dropped:
                text += f"\narrivals waiting {counts.waiting:,}, dropped {counts.dropped:,}"
            fields |= {f"arrivals_{name}": value for name, value in asdict(counts).items()}
        self.show_progress(text, **fields)

    def end(self, prepared: PreparedDispatch) -> None:
        """Report the result; later progress is not shown."""
        from checkpoints.commit import queue_key

        seconds = self.end_line()
        counts, progress = prepared.sink.counts, prepared.output.progress
        self.say(
            "stop",
            f"dispatched {counted(counts.messages, 'message')} "
            f"({counts.bytes / MEGA:,.1f} MB of log) in {seconds:.1f} s; "
            f"{prepared.output.path} is at offset {progress.reput_from_offset}",
            messages=counts.messages,
            bytes=counts.bytes,
            seconds=round(seconds, 3),
            reput_from_offset=progress.reput_from_offset,
        )
        if counts.expired_files:
            text = f"deleted {counts.expired_files:,} expired queue and index files"
            self.say("expired", text, files=counts.expired_files)
        for queue, drops in progress.drops.items():
            topic, queue_id = queue_key(queue)
            text = drops_line(topic, queue_id, repeated=drops["repeated"], gaps=drops["gaps"])
            self.say("rules", text, queue=queue, **drops)
        for lost in progress.lost:
            text = f"lost: offsets {lost.begin} to {lost.end} of {lost.path}: {lost.reason}"
            self.say("lost", text, **asdict(lost))


@dataclass
class Board(LineReporter):
    """Reports several dispatches: on a terminal, one live line for each broker, in their order."""

    lines: dict[str, str] = field(default_factory=dict)  # "" before its first progress

    def show_broker(self, name: str, text: str, fields: Mapping[str, object]) -> None:
        """Show the progress of one broker."""
        self.lines[name] = text
        shown = [f"{name}: {line}" for name, line in self.lines.items() if line]
        self.show_progress("\n".join(shown), **fields, broker=name)


@dataclass
class BrokerReporter(Reporter):
    """Reports one of several dispatches; each event names the broker."""

    name: str = ""
    board: Board = field(default_factory=lambda: Board(is_live=False))

    def say(self, event: str, text: str, **fields: object) -> None:
        """Report an event of this broker."""
        self.board.say(event, f"{self.name}: {text}", **fields, broker=self.name)

    def show_progress(self, text: str, **fields: object) -> None:
        """Show a progress report; ignored after the end."""
        if not self._has_ended:
            self.board.show_broker(self.name, text, fields)


def arrivals_line(counts: ArrivalCounts) -> str:
    """Return one line that counts the arrivals by outcome."""
    return (
        f"arrivals: {counts.sent:,} sent to Kafka, {counts.coalesced:,} superseded by newer ones, "
        f"{counts.dropped:,} dropped"
    )
