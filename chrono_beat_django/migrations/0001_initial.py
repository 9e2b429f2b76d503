"""The first tables. On PostgreSQL executions are partitioned by the day of scheduled_at from the start."""
import datetime

import django.core.validators
import django.db.models.functions.datetime
import django.utils.timezone
from django.db import migrations, models

import chrono_beat_django.models


class CreateByDay(migrations.CreateModel):
    """Create a table that PostgreSQL partitions by the day of ``scheduled_at``; a plain table elsewhere.

    A partitioned table can't have a key without its partition column, so ``id`` is not its primary key there but has a
    hash index (cheaper to keep than a tree of 60 bytes an entry), and (job_id, scheduled_at, attempt) is what is unique.
    The DEFAULT partition takes the days that have no table of their own.
    """

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        model = to_state.apps.get_model(app_label, self.name)
        if schema_editor.connection.vendor != "postgresql" or not self.allow_migrate_model(
            schema_editor.connection.alias, model
        ):
            return super().database_forwards(app_label, schema_editor, from_state, to_state)
        table = model._meta.db_table
        sql, params = schema_editor.table_sql(model)
        schema_editor.execute(sql.replace(" PRIMARY KEY", "", 1) + " PARTITION BY RANGE (scheduled_at)", params or None)
        schema_editor.execute(f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT")
        schema_editor.execute(f"CREATE INDEX {table}_id ON {table} USING hash (id)")
        for index in model._meta.indexes:
            schema_editor.add_index(model, index)


def create_default_tenant(apps, schema_editor):
    """Make the tenant of jobs that name none."""
    apps.get_model("chrono_beat", "Tenant").objects.using(schema_editor.connection.alias).get_or_create(slug="default")


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='Dispatcher',
            fields=[
                ('member', models.CharField(max_length=255, primary_key=True, serialize=False)),
                ('expires_at', models.DateTimeField()),
                ('leaving', models.BooleanField(db_default=False, default=False)),
            ],
            options={
                'db_table': 'chrono_dispatcher',
                'ordering': ['member'],
            },
        ),
        migrations.CreateModel(
            name='Lane',
            fields=[
                ('number', models.PositiveIntegerField(primary_key=True, serialize=False)),
                ('generation', models.BigIntegerField(db_default=0, default=0)),
                ('replication_id', models.CharField(blank=True, db_default='', default='', max_length=100)),
                ('began_at', models.DateTimeField(db_default=datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC), default=datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC))),
            ],
            options={
                'db_table': 'chrono_lane',
                'ordering': ['number'],
            },
        ),
        migrations.CreateModel(
            name='Partition',
            fields=[
                ('number', models.PositiveIntegerField(primary_key=True, serialize=False)),
                ('owner', models.CharField(blank=True, db_default='', default='', max_length=255)),
                ('epoch', models.BigIntegerField(db_default=0, default=0)),
                ('loaded_epoch', models.BigIntegerField(db_default=0, default=0)),
                ('expires_at', models.DateTimeField(db_default=datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC), default=datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC))),
                ('offered', models.BooleanField(db_default=False, default=False)),
            ],
            options={
                'db_table': 'chrono_partition',
                'ordering': ['number'],
            },
        ),
        migrations.CreateModel(
            name='Tenant',
            fields=[
                ('slug', models.SlugField(max_length=63, primary_key=True, serialize=False)),
                ('name', models.CharField(blank=True, db_default='', default='', max_length=255)),
                ('weight', models.PositiveIntegerField(db_default=1, default=1, help_text='Share of the workers among tenants with work.', validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(1000)])),
                ('max_running', models.PositiveIntegerField(db_default=20, default=20, help_text='Executions that may run at the same time.')),
                ('pool', models.CharField(blank=True, db_default='', default='', help_text='Celery queue of jobs that name none.', max_length=100)),
                ('max_jobs', models.PositiveIntegerField(db_default=10000, default=10000)),
                ('create_rate', models.FloatField(db_default=100.0, default=100.0, help_text='Jobs created per second, in the long run.')),
                ('failure_threshold', models.FloatField(blank=True, help_text='Share of failures (0 to 1) from which on retries are held back; empty: never.', null=True)),
                ('retries_paused_until', models.DateTimeField(blank=True, null=True)),
                ('paused', models.BooleanField(db_default=False, default=False)),
                ('pause_count', models.PositiveIntegerField(db_default=0, default=0, editable=False)),
                ('spread_seconds', models.PositiveIntegerField(db_default=0, default=0, help_text='Spread of jobs that set none: each starts at its own offset within so many seconds.')),
                ('retention_days', models.PositiveIntegerField(blank=True, null=True)),
                ('alert_email', models.TextField(blank=True, db_default='', default='')),
                ('alert_url', models.TextField(blank=True, db_default='', default='')),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), default=django.utils.timezone.now, editable=False)),
                ('updated_at', models.DateTimeField(auto_now=True, db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'chrono_tenant',
                'ordering': ['slug'],
            },
        ),
        migrations.CreateModel(
            name='Deployment',
            fields=[
                ('id', models.PositiveSmallIntegerField(db_default=1, default=1, primary_key=True, serialize=False)),
                ('partitions', models.PositiveIntegerField()),
                ('lanes', models.PositiveIntegerField()),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), default=django.utils.timezone.now)),
            ],
            options={
                'db_table': 'chrono_deployment',
                'constraints': [models.CheckConstraint(condition=models.Q(('id', 1)), name='chrono_deployment_single')],
            },
        ),
        CreateByDay(
            name='Execution',
            fields=[
                ('job_id', models.UUIDField()),
                ('scheduled_at', models.DateTimeField()),
                ('due_at', models.DateTimeField()),
                ('first_due_at', models.DateTimeField()),
                ('holder_epoch', models.BigIntegerField(db_default=0, default=0, help_text="Epoch whose wheel holds the row; 0: nobody's.")),
                ('partition', models.IntegerField(db_default=0, default=0)),
                ('attempt', models.IntegerField(db_default=1, default=1)),
                ('retries', models.IntegerField(db_default=0, default=0)),
                ('job_version', models.IntegerField(db_default=1, default=1)),
                ('deliveries', models.IntegerField(db_default=0, default=0)),
                ('missed_count', models.IntegerField(db_default=0, default=0)),
                ('id', models.CharField(max_length=100, primary_key=True, serialize=False)),
                ('tenant', models.CharField(max_length=63)),
                ('job_name', models.CharField(db_default='', default='', max_length=255)),
                ('kind', models.CharField(choices=[('schedule', 'schedule'), ('manual', 'manual'), ('backfill', 'backfill'), ('retry', 'retry')], db_default='schedule', default='schedule', max_length=16)),
                ('state', models.CharField(choices=[('scheduled', 'scheduled'), ('queued', 'queued'), ('running', 'running'), ('succeeded', 'succeeded'), ('failed', 'failed'), ('dead', 'dead'), ('skipped', 'skipped'), ('cancelled', 'cancelled'), ('expired', 'expired'), ('missed', 'missed')], db_default='scheduled', default='scheduled', max_length=16)),
                ('reason', models.CharField(blank=True, db_default='', default='', max_length=16)),
                ('cancel_requested_at', models.DateTimeField(blank=True, null=True)),
                ('published_at', models.DateTimeField(blank=True, null=True)),
                ('started_at', models.DateTimeField(blank=True, null=True)),
                ('finished_at', models.DateTimeField(blank=True, null=True)),
                ('worker', models.CharField(blank=True, db_default='', default='', max_length=255)),
                ('error', models.TextField(blank=True, db_default='', default='')),
                ('args', models.TextField(blank=True, null=True)),
                ('kwargs', models.TextField(blank=True, null=True)),
                ('first_missed_at', models.DateTimeField(blank=True, null=True)),
                ('result', models.TextField(blank=True, db_default='', default='')),
            ],
            options={
                'db_table': 'chrono_execution',
                'indexes': [models.Index(condition=models.Q(('state__in', ('scheduled', 'queued', 'running'))), fields=['partition', 'due_at'], name='chrono_execution_open'), models.Index(condition=models.Q(('holder_epoch', 0), ('state', 'scheduled')), fields=['due_at'], name='chrono_execution_free'), models.Index(condition=models.Q(('state__in', ('succeeded', 'failed', 'dead', 'skipped', 'cancelled', 'expired', 'missed'))), fields=['tenant', 'state', 'finished_at'], name='chrono_execution_ended')],
                'constraints': [models.UniqueConstraint(fields=('job_id', 'scheduled_at', 'attempt'), name='chrono_execution_key')],
            },
        ),
        migrations.CreateModel(
            name='Job',
            fields=[
                ('id', models.UUIDField(default=chrono_beat_django.models.new_job_id, editable=False, primary_key=True, serialize=False)),
                ('partition', models.IntegerField(db_default=0, default=0, editable=False)),
                ('version', models.IntegerField(db_default=1, default=1, editable=False)),
                ('paused', models.BooleanField(db_default=False, default=False)),
                ('replan', models.BooleanField(db_default=False, default=False, editable=False)),
                ('next_run_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('tenant', models.CharField(db_default='default', default='default', max_length=63)),
                ('name', models.CharField(max_length=255)),
                ('schedule_kind', models.CharField(choices=[('cron', 'cron'), ('interval', 'interval'), ('once', 'once'), ('celery', 'celery')], db_default='cron', default='cron', max_length=16)),
                ('expression', models.TextField(db_default='', default='')),
                ('timezone', models.CharField(db_default='UTC', default='UTC', max_length=64)),
                ('start_at', models.DateTimeField(blank=True, null=True)),
                ('end_at', models.DateTimeField(blank=True, null=True)),
                ('anchor_at', models.DateTimeField(blank=True, help_text='Where an interval counts from.', null=True)),
                ('max_occurrences', models.PositiveIntegerField(blank=True, null=True)),
                ('spread_seconds', models.PositiveIntegerField(blank=True, help_text="Empty: the tenant's.", null=True)),
                ('target_kind', models.CharField(choices=[('task', 'task')], db_default='task', default='task', max_length=16)),
                ('task', models.CharField(db_default='', default='', max_length=255)),
                ('args', models.TextField(blank=True, db_default='[]', default='[]', help_text='A JSON array, kept byte for byte.')),
                ('kwargs', models.TextField(blank=True, db_default='{}', default='{}', help_text='A JSON object, kept byte for byte.')),
                ('headers', models.TextField(blank=True, db_default='', default='', help_text='A JSON object of further message headers.')),
                ('pool', models.CharField(blank=True, db_default='', default='', help_text="Celery queue; empty: the tenant's.", max_length=100)),
                ('priority', models.PositiveSmallIntegerField(db_default=5, default=5, help_text='0 is drawn first, 9 last.', validators=[django.core.validators.MaxValueValidator(9)])),
                ('soft_limit_seconds', models.FloatField(blank=True, null=True)),
                ('max_duration_seconds', models.FloatField(blank=True, db_default=21600.0, default=21600.0, null=True)),
                ('idempotent', models.CharField(choices=[('unknown', 'unknown'), ('yes', 'yes'), ('no', 'no')], db_default='unknown', default='unknown', max_length=8)),
                ('max_attempts', models.PositiveIntegerField(blank=True, help_text='Empty: 3 where idempotent, else 1.', null=True)),
                ('retry_base_seconds', models.FloatField(db_default=30.0, default=30.0)),
                ('retry_factor', models.FloatField(db_default=2.0, default=2.0)),
                ('retry_maximum_seconds', models.FloatField(db_default=3600.0, default=3600.0)),
                ('retry_jitter', models.FloatField(db_default=0.2, default=0.2)),
                ('concurrency', models.CharField(choices=[('forbid', 'forbid'), ('allow', 'allow'), ('replace', 'replace')], db_default='forbid', default='forbid', max_length=16)),
                ('exclusion_group', models.CharField(blank=True, db_default='', default='', max_length=100)),
                ('expires_after_seconds', models.FloatField(blank=True, null=True)),
                ('misfire', models.CharField(choices=[('skip', 'skip'), ('latest', 'latest'), ('all', 'all')], db_default='latest', default='latest', max_length=16)),
                ('misfire_cap', models.PositiveIntegerField(blank=True, null=True)),
                ('grace_seconds', models.FloatField(blank=True, null=True)),
                ('key_scope', models.CharField(choices=[('occurrence', 'occurrence'), ('attempt', 'attempt')], db_default='occurrence', default='occurrence', max_length=16)),
                ('quarantined_reason', models.TextField(blank=True, db_default='', default='', editable=False)),
                ('note', models.TextField(blank=True, db_default='', default='')),
                ('source', models.CharField(choices=[('api', 'api'), ('decorator', 'decorator'), ('admin', 'admin'), ('import', 'import')], db_default='api', default='api', editable=False, max_length=16)),
                ('finished_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), default=django.utils.timezone.now, editable=False)),
                ('updated_at', models.DateTimeField(auto_now=True, db_default=django.db.models.functions.datetime.Now())),
                ('created_by', models.CharField(blank=True, db_default='', default='', editable=False, max_length=255)),
            ],
            options={
                'db_table': 'chrono_job',
                'ordering': ['tenant', 'name'],
                'indexes': [models.Index(condition=models.Q(('next_run_at__isnull', False)), fields=['partition', 'next_run_at'], name='chrono_job_due'), models.Index(condition=models.Q(('finished_at__isnull', False)), fields=['finished_at'], name='chrono_job_finished')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('finished_at__isnull', True)), fields=('tenant', 'name'), name='chrono_job_name'), models.CheckConstraint(condition=models.Q(('next_run_at__gte', datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC)), ('next_run_at__lt', datetime.datetime(9999, 1, 1, 0, 0, tzinfo=datetime.UTC))), name='chrono_job_next_run_at_range'), models.CheckConstraint(condition=models.Q(('start_at__gte', datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC)), ('start_at__lt', datetime.datetime(9999, 1, 1, 0, 0, tzinfo=datetime.UTC))), name='chrono_job_start_at_range'), models.CheckConstraint(condition=models.Q(('end_at__gte', datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC)), ('end_at__lt', datetime.datetime(9999, 1, 1, 0, 0, tzinfo=datetime.UTC))), name='chrono_job_end_at_range'), models.CheckConstraint(condition=models.Q(('anchor_at__gte', datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC)), ('anchor_at__lt', datetime.datetime(9999, 1, 1, 0, 0, tzinfo=datetime.UTC))), name='chrono_job_anchor_at_range')],
            },
        ),
        migrations.CreateModel(
            name='JobEvent',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), default=django.utils.timezone.now)),
                ('job_id', models.UUIDField()),
                ('tenant', models.CharField(max_length=63)),
                ('job_name', models.CharField(db_default='', default='', max_length=255)),
                ('version', models.PositiveIntegerField(db_default=0, default=0)),
                ('action', models.CharField(max_length=32)),
                ('actor', models.CharField(blank=True, db_default='', default='', max_length=255)),
                ('detail', models.TextField(blank=True, db_default='', default='', help_text='JSON: what changed, from what to what.')),
            ],
            options={
                'db_table': 'chrono_job_event',
                'indexes': [models.Index(fields=['job_id', 'at'], name='chrono_job_event_job')],
            },
        ),
        migrations.RunPython(create_default_tenant, migrations.RunPython.noop, elidable=False),
    ]
