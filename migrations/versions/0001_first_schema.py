"""The first schema."""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

IMMUTABLE = ("algorithm_version", "audit_log", "prediction", "result", "run_event", "score_item")
STATES = "('blocked', 'queued', 'leased', 'preparing', 'working', 'finalizing', 'succeeded', 'failed', 'cancelled')"
CAUSES = (
    "('user_error', 'diverged', 'budget_exhausted', 'timeout', 'oom_host', 'oom_gpu', 'limit', 'image', "
    "'gpu_fault', 'disk', 'lost_worker', 'scoring', 'dependency', 'internal')"
)


def upgrade() -> None:
    op.create_table(
        "account",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("handle", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("auth_provider", sa.Text(), nullable=False),
        sa.Column("auth_subject", sa.Text(), nullable=False),
        sa.Column(
            "active",
            sa.Boolean(create_constraint=True, name="active"),
            server_default=sa.text("true"),
            nullable=False,
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("role IN ('viewer', 'submitter', 'operator', 'admin')", name=op.f("ck_account_role")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_account")),
        sa.UniqueConstraint("auth_provider", "auth_subject", name=op.f("uq_account_auth_provider_auth_subject")),
        sa.UniqueConstraint("handle", name=op.f("uq_account_handle")),
    )
    op.create_table(
        "artifact",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("storage_key", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Float(precision=53), nullable=True),
        sa.Column("purged_at", sa.Float(precision=53), nullable=True),
        sa.CheckConstraint("size_bytes >= 0", name=op.f("ck_artifact_size_bytes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_artifact")),
        sa.UniqueConstraint("sha256", name=op.f("uq_artifact_sha256")),
    )
    op.create_table(
        "backbone",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("parameters", sa.BigInteger(), nullable=False),
        sa.Column("tiny", sa.Boolean(create_constraint=True, name="tiny"), nullable=False),
        sa.CheckConstraint("parameters > 0", name=op.f("ck_backbone_parameters")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_backbone")),
        sa.UniqueConstraint("slug", name=op.f("uq_backbone_slug")),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("payload_json", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("published_at", sa.Float(precision=53), nullable=True),
        sa.Column("tries", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
    )
    op.create_index(
        "ix_outbox_pending",
        "outbox",
        ["id"],
        unique=False,
        sqlite_where=sa.text("published_at IS NULL"),
        postgresql_where=sa.text("published_at IS NULL"),
    )
    op.create_table(
        "task_version",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("task_slug", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("split", sa.Text(), nullable=False),
        sa.Column("n_items", sa.Integer(), nullable=False),
        sa.Column("items_sha256", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("direction", sa.Text(), nullable=False),
        sa.Column("lower_bound", sa.Float(precision=53), nullable=False),
        sa.Column("upper_bound", sa.Float(precision=53), nullable=False),
        sa.Column(
            "hidden",
            sa.Boolean(create_constraint=True, name="hidden"),
            server_default=sa.text("false"),
            nullable=False,
        ),
        sa.CheckConstraint("direction IN ('max', 'min')", name=op.f("ck_task_version_direction")),
        sa.CheckConstraint("lower_bound < upper_bound", name=op.f("ck_task_version_bounds")),
        sa.CheckConstraint("lower_bound BETWEEN -1e300 AND 1e300", name=op.f("ck_task_version_lower_bound_finite")),
        sa.CheckConstraint("n_items > 0", name=op.f("ck_task_version_n_items")),
        sa.CheckConstraint("upper_bound BETWEEN -1e300 AND 1e300", name=op.f("ck_task_version_upper_bound_finite")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_task_version")),
        sa.UniqueConstraint("task_slug", "version", "split", name=op.f("uq_task_version_task_slug_version_split")),
    )
    op.create_table(
        "track_version",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("track_slug", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("rules_sha256", sa.Text(), nullable=False),
        sa.Column("rules_json", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("device IN ('cpu', 'gpu')", name=op.f("ck_track_version_device")),
        sa.CheckConstraint("state IN ('draft', 'open', 'closed')", name=op.f("ck_track_version_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_track_version")),
        sa.UniqueConstraint("track_slug", "version", name=op.f("uq_track_version_track_slug_version")),
    )
    op.create_table(
        "worker",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("families", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("software_version", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Float(precision=53), nullable=False),
        sa.Column("last_seen_at", sa.Float(precision=53), nullable=False),
        sa.CheckConstraint("device IN ('cpu', 'gpu')", name=op.f("ck_worker_device")),
        sa.CheckConstraint(
            "state IN ('starting', 'idle', 'busy', 'draining', 'stopped', 'lost', 'disabled')",
            name=op.f("ck_worker_state"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker")),
        sa.UniqueConstraint("name", name=op.f("uq_worker_name")),
    )
    op.create_table(
        "algorithm",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("owner_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["account.id"], name=op.f("fk_algorithm_owner_id"), ondelete="RESTRICT"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_algorithm")),
        sa.UniqueConstraint("slug", name=op.f("uq_algorithm_slug")),
    )
    op.create_table(
        "audit_log",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("actor_id", sa.Text(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("before_sha256", sa.Text(), nullable=True),
        sa.Column("after_sha256", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["actor_id"], ["account.id"], name=op.f("fk_audit_log_actor_id"), ondelete="RESTRICT"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
    )
    op.create_table(
        "backbone_revision",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("backbone_id", sa.Text(), nullable=False),
        sa.Column("source_revision", sa.Text(), nullable=False),
        sa.Column("weights_sha256", sa.Text(), nullable=False),
        sa.Column("tokenizer_sha256", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["backbone_id"], ["backbone.id"], name=op.f("fk_backbone_revision_backbone_id"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_backbone_revision")),
        sa.UniqueConstraint(
            "backbone_id",
            "source_revision",
            "weights_sha256",
            "tokenizer_sha256",
            name=op.f("uq_backbone_revision_backbone_id_source_revision_weights_sha256_tokenizer_sha256"),
        ),
    )
    op.create_table(
        "task_item",
        sa.Column("task_version_id", sa.Text(), nullable=False),
        sa.Column("item_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("item_sha256", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=True),
        sa.CheckConstraint("position >= 0", name=op.f("ck_task_item_position")),
        sa.ForeignKeyConstraint(
            ["task_version_id"], ["task_version.id"], name=op.f("fk_task_item_task_version_id"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("task_version_id", "item_id", name=op.f("pk_task_item")),
        sa.UniqueConstraint("task_version_id", "position", name=op.f("uq_task_item_task_version_id_position")),
    )
    op.create_table(
        "algorithm_version",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("algorithm_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("class_name", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("source_sha256", sa.Text(), nullable=False),
        sa.Column("hyperparameters_json", sa.Text(), nullable=False),
        sa.Column("content_sha256", sa.Text(), nullable=False),
        sa.Column("trains_on", sa.Text(), nullable=False),
        sa.Column("built_in", sa.Boolean(create_constraint=True, name="built_in"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "trains_on IN ('demonstrations', 'preferences', 'prompts')", name=op.f("ck_algorithm_version_trains_on")
        ),
        sa.CheckConstraint("version >= 1", name=op.f("ck_algorithm_version_version")),
        sa.ForeignKeyConstraint(
            ["algorithm_id"], ["algorithm.id"], name=op.f("fk_algorithm_version_algorithm_id"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_algorithm_version")),
        sa.UniqueConstraint(
            "algorithm_id", "content_sha256", name=op.f("uq_algorithm_version_algorithm_id_content_sha256")
        ),
        sa.UniqueConstraint("algorithm_id", "version", name=op.f("uq_algorithm_version_algorithm_id_version")),
    )
    op.create_table(
        "cell",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("track_version_id", sa.Text(), nullable=False),
        sa.Column("backbone_revision_id", sa.Text(), nullable=False),
        sa.Column("task_version_id", sa.Text(), nullable=False),
        sa.Column("budget_json", sa.Text(), nullable=False),
        sa.Column("budget_sha256", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("seeds_required", sa.Integer(), nullable=False),
        sa.Column("reference_value", sa.Float(precision=53), nullable=True),
        sa.Column("chance_floor", sa.Float(precision=53), nullable=False),
        sa.CheckConstraint("role IN ('ranked', 'shown', 'transfer')", name=op.f("ck_cell_role")),
        sa.CheckConstraint("chance_floor BETWEEN -1e300 AND 1e300", name=op.f("ck_cell_chance_floor_finite")),
        sa.CheckConstraint("position >= 0", name=op.f("ck_cell_position")),
        sa.CheckConstraint("reference_value BETWEEN -1e300 AND 1e300", name=op.f("ck_cell_reference_value_finite")),
        sa.CheckConstraint("seeds_required >= 1", name=op.f("ck_cell_seeds_required")),
        sa.ForeignKeyConstraint(
            ["backbone_revision_id"],
            ["backbone_revision.id"],
            name=op.f("fk_cell_backbone_revision_id"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["task_version_id"], ["task_version.id"], name=op.f("fk_cell_task_version_id"), ondelete="RESTRICT"
        ),
        sa.ForeignKeyConstraint(
            ["track_version_id"], ["track_version.id"], name=op.f("fk_cell_track_version_id"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cell")),
        sa.UniqueConstraint(
            "track_version_id", "backbone_revision_id", "task_version_id", "budget_sha256", name="uq_cell_identity"
        ),
    )
    op.create_table(
        "entry",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("algorithm_version_id", sa.Text(), nullable=True),
        sa.Column("track_version_id", sa.Text(), nullable=False),
        sa.Column("submitted_by", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("gate", sa.Text(), nullable=False),
        sa.Column("visibility", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("rerun_of", sa.Text(), nullable=True),
        sa.Column("rejection", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("withdrawn_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(gate = 'rejected') = (rejection IS NOT NULL)", name=op.f("ck_entry_rejection")),
        sa.CheckConstraint("(gate = 'withdrawn') = (withdrawn_at IS NOT NULL)", name=op.f("ck_entry_withdrawn_at")),
        sa.CheckConstraint(
            "(kind = 'reference') = (algorithm_version_id IS NULL)", name=op.f("ck_entry_reference_has_no_algorithm")
        ),
        sa.CheckConstraint(
            "gate IN ('draft', 'validating', 'rejected', 'accepted', 'withdrawn')", name=op.f("ck_entry_gate")
        ),
        sa.CheckConstraint("kind IN ('reference', 'baseline', 'control', 'method')", name=op.f("ck_entry_kind")),
        sa.CheckConstraint("visibility IN ('private', 'anonymous', 'public')", name=op.f("ck_entry_visibility")),
        sa.CheckConstraint("length(name) BETWEEN 1 AND 200", name=op.f("ck_entry_name_length")),
        sa.CheckConstraint("ordinal >= 1", name=op.f("ck_entry_ordinal")),
        sa.ForeignKeyConstraint(
            ["algorithm_version_id"],
            ["algorithm_version.id"],
            name=op.f("fk_entry_algorithm_version_id"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(["rerun_of"], ["entry.id"], name=op.f("fk_entry_rerun_of"), ondelete="RESTRICT"),
        sa.ForeignKeyConstraint(
            ["submitted_by"], ["account.id"], name=op.f("fk_entry_submitted_by"), ondelete="RESTRICT"
        ),
        sa.ForeignKeyConstraint(
            ["track_version_id"], ["track_version.id"], name=op.f("fk_entry_track_version_id"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_entry")),
        sa.UniqueConstraint("submitted_by", "idempotency_key", name=op.f("uq_entry_submitted_by_idempotency_key")),
    )
    op.create_index("ix_entry_track", "entry", ["track_version_id", "gate"], unique=False)
    op.create_table(
        "run",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("entry_id", sa.Text(), nullable=False),
        sa.Column("backbone_revision_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("depends_on", sa.Text(), nullable=True),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("job_json", sa.Text(), nullable=False),
        sa.Column("job_sha256", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("sentence", sa.Text(), nullable=True),
        sa.Column("next_step", sa.Text(), nullable=True),
        sa.Column("charged", sa.Boolean(create_constraint=True, name="charged"), nullable=True),
        sa.Column("cancel_requested_at", sa.Float(precision=53), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("max_attempts", sa.Integer(), server_default="3", nullable=False),
        sa.Column("lease_token", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_expires_at", sa.Float(precision=53), nullable=True),
        sa.Column("not_before", sa.Float(precision=53), server_default="0", nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("enqueued_at", sa.Float(precision=53), nullable=True),
        sa.Column("announced_at", sa.Float(precision=53), nullable=True),
        sa.Column("started_at", sa.Float(precision=53), nullable=True),
        sa.Column("finished_at", sa.Float(precision=53), nullable=True),
        sa.Column("stage", sa.Text(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("of", sa.Integer(), nullable=True),
        sa.Column("reward", sa.Float(precision=53), nullable=True),
        sa.CheckConstraint(
            "(state IN ('leased', 'preparing', 'working', 'finalizing')) "
            "= (lease_owner IS NOT NULL AND lease_expires_at IS NOT NULL)",
            name=op.f("ck_run_lease"),
        ),
        sa.CheckConstraint(
            "(state IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL)",
            name=op.f("ck_run_finished_at"),
        ),
        sa.CheckConstraint(
            f"cause IN {CAUSES}",
            name=op.f("ck_run_cause"),
        ),
        sa.CheckConstraint("device IN ('cpu', 'gpu')", name=op.f("ck_run_device")),
        sa.CheckConstraint("kind IN ('check', 'train', 'evaluate', 'score')", name=op.f("ck_run_kind")),
        sa.CheckConstraint("state <> 'blocked' OR depends_on IS NOT NULL", name=op.f("ck_run_blocked")),
        sa.CheckConstraint(
            "state <> 'failed' OR (cause IS NOT NULL AND sentence IS NOT NULL AND next_step IS NOT NULL "
            "AND charged IS NOT NULL)",
            name=op.f("ck_run_failure_is_explained"),
        ),
        sa.CheckConstraint("state <> 'succeeded' OR cause IS NULL", name=op.f("ck_run_success_has_no_cause")),
        sa.CheckConstraint(
            f"state IN {STATES}",
            name=op.f("ck_run_state"),
        ),
        sa.CheckConstraint("(lease_owner IS NULL) = (lease_expires_at IS NULL)", name=op.f("ck_run_lease_whole")),
        sa.CheckConstraint("attempts BETWEEN 0 AND max_attempts", name=op.f("ck_run_attempts")),
        sa.CheckConstraint("lease_expires_at BETWEEN -1e300 AND 1e300", name=op.f("ck_run_lease_expires_at_finite")),
        sa.CheckConstraint("lease_token >= 0", name=op.f("ck_run_lease_token")),
        sa.CheckConstraint("not_before BETWEEN -1e300 AND 1e300", name=op.f("ck_run_not_before_finite")),
        sa.CheckConstraint("reward BETWEEN -1e300 AND 1e300", name=op.f("ck_run_reward_finite")),
        sa.CheckConstraint("seed BETWEEN 0 AND 2147483647", name=op.f("ck_run_seed")),
        sa.ForeignKeyConstraint(
            ["backbone_revision_id"],
            ["backbone_revision.id"],
            name=op.f("fk_run_backbone_revision_id"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(["depends_on"], ["run.id"], name=op.f("fk_run_depends_on"), ondelete="RESTRICT"),
        sa.ForeignKeyConstraint(["entry_id"], ["entry.id"], name=op.f("fk_run_entry_id"), ondelete="RESTRICT"),
        sa.ForeignKeyConstraint(["lease_owner"], ["worker.id"], name=op.f("fk_run_lease_owner"), ondelete="RESTRICT"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
        sa.UniqueConstraint(
            "entry_id",
            "backbone_revision_id",
            "kind",
            "seed",
            name=op.f("uq_run_entry_id_backbone_revision_id_kind_seed"),
        ),
    )
    op.create_index(
        "ix_run_claim",
        "run",
        ["queue", "priority", "enqueued_at", "id"],
        unique=False,
        sqlite_where=sa.text("state = 'queued'"),
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_index("ix_run_depends_on", "run", ["depends_on"], unique=False)
    op.create_index(
        "ix_run_lease",
        "run",
        ["lease_expires_at"],
        unique=False,
        sqlite_where=sa.text("lease_expires_at IS NOT NULL"),
        postgresql_where=sa.text("lease_expires_at IS NOT NULL"),
    )
    op.create_table(
        "attempt",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Float(precision=53), nullable=False),
        sa.Column("ended_at", sa.Float(precision=53), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("sentence", sa.Text(), nullable=True),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("software_version", sa.Text(), nullable=False),
        sa.Column("source_revision", sa.Text(), nullable=True),
        sa.Column("image_id", sa.Text(), nullable=True),
        sa.Column("isolation", sa.Text(), nullable=True),
        sa.Column("versions_json", sa.Text(), server_default="{}", nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("peak_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("log_tail", sa.Text(), server_default="", nullable=False),
        sa.CheckConstraint(
            f"cause IN {CAUSES}",
            name=op.f("ck_attempt_cause"),
        ),
        sa.CheckConstraint(
            "outcome IN ('succeeded', 'failed', 'cancelled', 'lost', 'returned')", name=op.f("ck_attempt_outcome")
        ),
        sa.CheckConstraint("(outcome IS NULL) = (ended_at IS NULL)", name=op.f("ck_attempt_ended_at")),
        sa.CheckConstraint("length(log_tail) <= 65536", name=op.f("ck_attempt_log_tail")),
        sa.CheckConstraint("number >= 1", name=op.f("ck_attempt_number")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_attempt_run_id"), ondelete="RESTRICT"),
        sa.ForeignKeyConstraint(["worker_id"], ["worker.id"], name=op.f("fk_attempt_worker_id"), ondelete="RESTRICT"),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("pk_attempt")),
        sa.UniqueConstraint("run_id", "token", name=op.f("uq_attempt_run_id_token")),
    )
    op.create_table(
        "check_result",
        sa.Column("content_sha256", sa.Text(), nullable=False),
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("runner_version", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("passed", sa.Boolean(create_constraint=True, name="passed"), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("log_tail", sa.Text(), server_default="", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_check_result_run_id"), ondelete="RESTRICT"),
        sa.PrimaryKeyConstraint("content_sha256", "family", "runner_version", name=op.f("pk_check_result")),
    )
    op.create_table(
        "run_event",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=True),
        sa.Column("from_state", sa.Text(), nullable=True),
        sa.Column("to_state", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("detail_json", sa.Text(), server_default="{}", nullable=False),
        sa.CheckConstraint(
            f"from_state IN {STATES}",
            name=op.f("ck_run_event_from_state"),
        ),
        sa.CheckConstraint(
            f"to_state IN {STATES}",
            name=op.f("ck_run_event_to_state"),
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_run_event_run_id"), ondelete="RESTRICT"),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_run_event")),
    )
    op.create_table(
        "metric_point",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("value", sa.Float(precision=53), nullable=False),
        sa.Column("device_seconds", sa.Float(precision=53), nullable=True),
        sa.Column("forwards", sa.Float(precision=53), nullable=True),
        sa.CheckConstraint(
            "device_seconds BETWEEN 0 AND 1e300", name=op.f("ck_metric_point_device_seconds_not_negative")
        ),
        sa.CheckConstraint("forwards BETWEEN 0 AND 1e300", name=op.f("ck_metric_point_forwards_not_negative")),
        sa.CheckConstraint("step >= 0", name=op.f("ck_metric_point_step")),
        sa.CheckConstraint("value BETWEEN -1e300 AND 1e300", name=op.f("ck_metric_point_value_finite")),
        sa.ForeignKeyConstraint(
            ["run_id", "token"],
            ["attempt.run_id", "attempt.token"],
            name=op.f("fk_metric_point_run_id_token"),
            ondelete="RESTRICT",
        ),
        sa.PrimaryKeyConstraint("run_id", "token", "name", "step", name=op.f("pk_metric_point")),
    )
    op.create_table(
        "prediction",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("task_version_id", sa.Text(), nullable=False),
        sa.Column("item_id", sa.Text(), nullable=False),
        sa.Column("sample", sa.Integer(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("prompt_sha256", sa.Text(), nullable=False),
        sa.Column("output", sa.Text(), nullable=False),
        sa.Column("output_sha256", sa.Text(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("nfe", sa.Integer(), nullable=False),
        sa.Column("truncated", sa.Boolean(create_constraint=True, name="truncated"), nullable=False),
        sa.CheckConstraint("nfe >= 0", name=op.f("ck_prediction_nfe")),
        sa.CheckConstraint("sample >= 0", name=op.f("ck_prediction_sample")),
        sa.CheckConstraint("tokens >= 0", name=op.f("ck_prediction_tokens")),
        sa.ForeignKeyConstraint(
            ["run_id", "token"],
            ["attempt.run_id", "attempt.token"],
            name=op.f("fk_prediction_run_id_token"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["task_version_id", "item_id"],
            ["task_item.task_version_id", "task_item.item_id"],
            name=op.f("fk_prediction_task_version_id_item_id"),
            ondelete="RESTRICT",
        ),
        sa.PrimaryKeyConstraint("run_id", "task_version_id", "item_id", "sample", name=op.f("pk_prediction")),
    )
    op.create_table(
        "result",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("task_version_id", sa.Text(), nullable=False),
        sa.Column("scorer", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("decoding", sa.Text(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("value", sa.Float(precision=53), nullable=False),
        sa.Column("standard_error", sa.Float(precision=53), nullable=True),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("n_no_answer", sa.Integer(), nullable=False),
        sa.Column("n_truncated", sa.Integer(), nullable=False),
        sa.Column("protocol", sa.Text(), nullable=False),
        sa.Column("recorded_at", sa.Float(precision=53), nullable=False),
        sa.CheckConstraint("decoding IN ('greedy', 'sampled')", name=op.f("ck_result_decoding")),
        sa.CheckConstraint("n > 0", name=op.f("ck_result_n")),
        sa.CheckConstraint("n_no_answer >= 0", name=op.f("ck_result_n_no_answer")),
        sa.CheckConstraint("n_truncated >= 0", name=op.f("ck_result_n_truncated")),
        sa.CheckConstraint("standard_error BETWEEN 0 AND 1e300", name=op.f("ck_result_standard_error_not_negative")),
        sa.CheckConstraint("value BETWEEN -1e300 AND 1e300", name=op.f("ck_result_value_finite")),
        sa.ForeignKeyConstraint(
            ["run_id", "token"],
            ["attempt.run_id", "attempt.token"],
            name=op.f("fk_result_run_id_token"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["task_version_id"], ["task_version.id"], name=op.f("fk_result_task_version_id"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("run_id", "task_version_id", "scorer", "metric", "decoding", name=op.f("pk_result")),
    )
    op.create_index("ix_result_task", "result", ["task_version_id", "scorer"], unique=False)
    op.create_table(
        "run_artifact",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("artifact_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["artifact_id"], ["artifact.id"], name=op.f("fk_run_artifact_artifact_id"), ondelete="RESTRICT"
        ),
        sa.ForeignKeyConstraint(
            ["run_id", "token"],
            ["attempt.run_id", "attempt.token"],
            name=op.f("fk_run_artifact_run_id_token"),
            ondelete="RESTRICT",
        ),
        sa.PrimaryKeyConstraint("run_id", "token", "role", name=op.f("pk_run_artifact")),
    )
    op.create_table(
        "usage",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("wall_seconds", sa.Float(precision=53), nullable=False),
        sa.Column("prepare_seconds", sa.Float(precision=53), server_default="0", nullable=False),
        sa.Column("train_seconds", sa.Float(precision=53), server_default="0", nullable=False),
        sa.Column("evaluate_seconds", sa.Float(precision=53), server_default="0", nullable=False),
        sa.Column("overhead_seconds", sa.Float(precision=53), server_default="0", nullable=False),
        sa.Column("device_seconds", sa.Float(precision=53), server_default="0", nullable=False),
        sa.Column("gradient_forwards", sa.Float(precision=53), server_default="0", nullable=False),
        sa.Column("forwards", sa.Float(precision=53), server_default="0", nullable=False),
        sa.Column("tokens_decoded", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("tokens_kept", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("optimiser_steps", sa.Integer(), server_default="0", nullable=False),
        sa.Column("energy_joules", sa.Float(precision=53), nullable=True),
        sa.Column("charged", sa.Boolean(create_constraint=True, name="charged"), nullable=False),
        sa.CheckConstraint("device_seconds BETWEEN 0 AND 1e300", name=op.f("ck_usage_device_seconds_not_negative")),
        sa.CheckConstraint("energy_joules BETWEEN 0 AND 1e300", name=op.f("ck_usage_energy_joules_not_negative")),
        sa.CheckConstraint("evaluate_seconds BETWEEN 0 AND 1e300", name=op.f("ck_usage_evaluate_seconds_not_negative")),
        sa.CheckConstraint("forwards BETWEEN 0 AND 1e300", name=op.f("ck_usage_forwards_not_negative")),
        sa.CheckConstraint(
            "gradient_forwards BETWEEN 0 AND 1e300", name=op.f("ck_usage_gradient_forwards_not_negative")
        ),
        sa.CheckConstraint("optimiser_steps BETWEEN 0 AND 1e300", name=op.f("ck_usage_optimiser_steps_not_negative")),
        sa.CheckConstraint("overhead_seconds BETWEEN 0 AND 1e300", name=op.f("ck_usage_overhead_seconds_not_negative")),
        sa.CheckConstraint("prepare_seconds BETWEEN 0 AND 1e300", name=op.f("ck_usage_prepare_seconds_not_negative")),
        sa.CheckConstraint("tokens_decoded BETWEEN 0 AND 1e300", name=op.f("ck_usage_tokens_decoded_not_negative")),
        sa.CheckConstraint("tokens_kept BETWEEN 0 AND 1e300", name=op.f("ck_usage_tokens_kept_not_negative")),
        sa.CheckConstraint("train_seconds BETWEEN 0 AND 1e300", name=op.f("ck_usage_train_seconds_not_negative")),
        sa.CheckConstraint("wall_seconds BETWEEN 0 AND 1e300", name=op.f("ck_usage_wall_seconds_not_negative")),
        sa.ForeignKeyConstraint(
            ["run_id", "token"],
            ["attempt.run_id", "attempt.token"],
            name=op.f("fk_usage_run_id_token"),
            ondelete="RESTRICT",
        ),
        sa.PrimaryKeyConstraint("run_id", "token", name=op.f("pk_usage")),
    )
    op.create_table(
        "score_item",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("task_version_id", sa.Text(), nullable=False),
        sa.Column("item_id", sa.Text(), nullable=False),
        sa.Column("sample", sa.Integer(), nullable=False),
        sa.Column("scorer", sa.Text(), nullable=False),
        sa.Column("score", sa.Float(precision=53), nullable=False),
        sa.Column("reward", sa.Float(precision=53), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.CheckConstraint("status IN ('ok', 'no_answer', 'truncated', 'error')", name=op.f("ck_score_item_status")),
        sa.CheckConstraint("reward BETWEEN -1e300 AND 1e300", name=op.f("ck_score_item_reward_finite")),
        sa.CheckConstraint("score BETWEEN -1e300 AND 1e300", name=op.f("ck_score_item_score_finite")),
        sa.ForeignKeyConstraint(
            ["run_id", "task_version_id", "item_id", "sample"],
            ["prediction.run_id", "prediction.task_version_id", "prediction.item_id", "prediction.sample"],
            name="fk_score_item_prediction",
            ondelete="RESTRICT",
        ),
        sa.PrimaryKeyConstraint("run_id", "task_version_id", "item_id", "sample", "scorer", name=op.f("pk_score_item")),
    )
    _add_local_account()
    for table in IMMUTABLE:
        _refuse_changes(table)


def downgrade() -> None:
    op.drop_table("score_item")
    op.drop_table("usage")
    op.drop_table("run_artifact")
    op.drop_table("result")
    op.drop_table("prediction")
    op.drop_table("metric_point")
    op.drop_table("run_event")
    op.drop_table("check_result")
    op.drop_table("attempt")
    op.drop_table("run")
    op.drop_table("entry")
    op.drop_table("cell")
    op.drop_table("algorithm_version")
    op.drop_table("task_item")
    op.drop_table("backbone_revision")
    op.drop_table("audit_log")
    op.drop_table("algorithm")
    op.drop_table("worker")
    op.drop_table("track_version")
    op.drop_table("task_version")
    op.drop_table("outbox")
    op.drop_table("backbone")
    op.drop_table("artifact")
    op.drop_table("account")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION refuse_change()")


def _add_local_account() -> None:
    """The person at this machine, so that every row has an owner from the start."""
    account = sa.table(
        "account",
        *(sa.column(name) for name in ("id", "handle", "role", "auth_provider", "auth_subject")),
        sa.column("created_at", sa.DateTime(timezone=True)),
    )
    now = datetime.now(UTC)
    sqlite = op.get_bind().dialect.name == "sqlite"
    op.bulk_insert(
        account,
        [
            {
                "id": "local",
                "handle": "local",
                "role": "admin",
                "auth_provider": "local",
                "auth_subject": "local",
                "created_at": now.replace(tzinfo=None) if sqlite else now,
            }
        ],
    )


def _refuse_changes(table: str) -> None:
    """UPDATE and DELETE end the statement with an error; so does TRUNCATE on PostgreSQL."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'rows of % are never changed nor deleted', TG_TABLE_NAME; END $$"
        )
        op.execute(
            f"CREATE TRIGGER tr_{table}_immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER tr_{table}_no_{change.lower()} BEFORE {change} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed nor deleted'); END"
        )
