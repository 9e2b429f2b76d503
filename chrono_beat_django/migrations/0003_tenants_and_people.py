"""What tenants and people need: quotas, keys, targets, history in sums, alerts."""

import django.db.models.functions.datetime
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('chrono_beat', '0002_control_and_recovery'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='execution',
            options={'permissions': [('cancel_execution', 'Can cancel executions'), ('replay_execution', 'Can replay dead letters'), ('discard_execution', 'Can discard dead letters')]},
        ),
        migrations.AlterModelOptions(
            name='job',
            options={'ordering': ['tenant', 'name'], 'permissions': [('pause_job', 'Can pause jobs'), ('resume_job', 'Can resume jobs'), ('trigger_job', 'Can run jobs now'), ('backfill_job', 'Can run what jobs missed')]},
        ),
        migrations.CreateModel(
            name='AlertMute',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('kind', models.CharField(blank=True, db_default='', default='', max_length=32)),
                ('tenant', models.CharField(blank=True, db_default='', default='', max_length=63)),
                ('subject', models.CharField(blank=True, db_default='', default='', max_length=255)),
                ('until', models.DateTimeField(blank=True, help_text='Empty: until it is removed.', null=True)),
                ('note', models.TextField(blank=True, db_default='', default='')),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), default=django.utils.timezone.now, editable=False)),
                ('created_by', models.CharField(blank=True, db_default='', default='', editable=False, max_length=255)),
            ],
            options={
                'db_table': 'chrono_alert_mute',
            },
        ),
        migrations.CreateModel(
            name='BeatWatch',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('scheduler', models.CharField(help_text='Its class.', max_length=255)),
                ('host', models.CharField(db_default='', default='', help_text='Where it ran.', max_length=255)),
                ('began_at', models.DateTimeField()),
                ('seen_until', models.DateTimeField(help_text='All that was sent before is noted.')),
                ('ended', models.BooleanField(db_default=False, default=False, help_text='Its beat was stopped then; one that was killed may have sent more.')),
            ],
            options={
                'db_table': 'chrono_beat_watch',
            },
        ),
        migrations.CreateModel(
            name='BeatFire',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('origin', models.CharField(help_text='The entry as an import names it.', max_length=255)),
                ('name', models.CharField(help_text='The entry as beat names it.', max_length=255)),
                ('task', models.CharField(max_length=255)),
                ('sent_at', models.DateTimeField(help_text="By the database's clock.")),
            ],
            options={
                'db_table': 'chrono_beat_fire',
                'indexes': [models.Index(fields=['sent_at'], name='chrono_beat_fire_sent')],
            },
        ),
        migrations.AddField(
            model_name='deployment',
            name='zone_data',
            field=models.CharField(blank=True, db_default='', default='', help_text='Version of the zone data that next runs were computed with.', max_length=32),
        ),
        migrations.AddField(
            model_name='lane',
            name='has_plain_tasks',
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AlterField(
            model_name='execution',
            name='kind',
            field=models.CharField(choices=[('schedule', 'schedule'), ('manual', 'manual'), ('backfill', 'backfill'), ('retry', 'retry'), ('replay', 'replay'), ('eta', 'eta')], db_default='schedule', default='schedule', max_length=16),
        ),
        migrations.AddField(
            model_name='execution',
            name='celery_id',
            field=models.CharField(blank=True, db_default='', default='', help_text='Where the Celery task id is another.', max_length=255),
        ),
        migrations.AddField(
            model_name='execution',
            name='options',
            field=models.TextField(blank=True, help_text='JSON: pool, priority, headers of one without a job.', null=True),
        ),
        migrations.AddField(
            model_name='execution',
            name='task',
            field=models.TextField(blank=True, help_text="Of an execution without a job; empty: the job's.", null=True),
        ),
        migrations.AddField(
            model_name='job',
            name='origin',
            field=models.CharField(blank=True, db_default='', default='', editable=False, help_text='What it was imported from, so that it is found again.', max_length=255),
        ),
        migrations.AddField(
            model_name='job',
            name='queue',
            field=models.CharField(blank=True, db_default='', default='', help_text='Stock queue of a message target.', max_length=255),
        ),
        migrations.AddField(
            model_name='job',
            name='timeout_seconds',
            field=models.FloatField(blank=True, help_text='Of one HTTP request.', null=True),
        ),
        migrations.AddField(
            model_name='job',
            name='url',
            field=models.TextField(blank=True, db_default='', default='', help_text='Where an HTTP target is.'),
        ),
        migrations.AddField(
            model_name='tenant',
            name='create_burst',
            field=models.PositiveIntegerField(db_default=1000, default=1000, help_text='Jobs created at once after a pause.'),
        ),
        migrations.AddField(
            model_name='tenant',
            name='create_counted_at',
            field=models.DateTimeField(blank=True, editable=False, help_text='When create_tokens was counted last.', null=True),
        ),
        migrations.AddField(
            model_name='tenant',
            name='jobs_at_most',
            field=models.PositiveIntegerField(editable=False, help_text='Jobs at the last count and since created; empty: never counted, or few.', null=True),
        ),
        migrations.AddField(
            model_name='tenant',
            name='jobs_counted_at',
            field=models.DateTimeField(blank=True, editable=False, help_text='When jobs_at_most was counted.', null=True),
        ),
        migrations.AddField(
            model_name='tenant',
            name='create_tokens',
            field=models.FloatField(editable=False, help_text='What is left of the burst; empty: all.', null=True),
        ),
        migrations.AddField(
            model_name='tenant',
            name='lateness_objective_seconds',
            field=models.FloatField(blank=True, help_text='An alert is raised when the 99th percentile of lateness passes it; empty: never.', null=True),
        ),
        migrations.AddField(
            model_name='tenant',
            name='webhook_secret',
            field=models.CharField(blank=True, db_default='', default='', editable=False, max_length=255),
        ),
        migrations.AddField(
            model_name='tenant',
            name='webhook_secret_before',
            field=models.CharField(blank=True, db_default='', default='', editable=False, help_text='Signs beside the present one while it is replaced.', max_length=255),
        ),
        migrations.AlterField(
            model_name='job',
            name='target_kind',
            field=models.CharField(choices=[('task', 'task'), ('http', 'http'), ('message', 'message'), ('shadow', 'shadow')], db_default='task', default='task', max_length=16),
        ),
        migrations.CreateModel(
            name='Alert',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('kind', models.CharField(max_length=32)),
                ('tenant', models.CharField(blank=True, db_default='', default='', help_text='Empty: it is about the deployment.', max_length=63)),
                ('subject', models.CharField(blank=True, db_default='', default='', help_text='Job, partition, task … it is about.', max_length=255)),
                ('text', models.TextField(db_default='', default='')),
                ('detail', models.TextField(blank=True, db_default='', default='', help_text='JSON.')),
                ('count', models.PositiveIntegerField(db_default=1, default=1, help_text='How often it was noticed.')),
                ('first_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), default=django.utils.timezone.now)),
                ('last_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), default=django.utils.timezone.now)),
                ('told_at', models.DateTimeField(blank=True, help_text='When it was last sent.', null=True)),
                ('told_count', models.PositiveIntegerField(db_default=0, default=0, editable=False, help_text='The count that was sent.')),
                ('told_to', models.TextField(blank=True, db_default='', default='', editable=False, help_text='JSON: how far each receiver is, and when it is told again.')),
                ('again_at', models.DateTimeField(blank=True, editable=False, help_text='When what is new is sent at the earliest.', null=True)),
                ('retry_at', models.DateTimeField(blank=True, editable=False, help_text='When the next receiver that failed is tried again.', null=True)),
                ('attempts', models.PositiveIntegerField(db_default=0, default=0, editable=False, help_text='Most attempts at one receiver that failed.')),
                ('claimed_until', models.DateTimeField(blank=True, editable=False, help_text='Until then a process sends it.', null=True)),
                ('closed_at', models.DateTimeField(blank=True, help_text='When it was over, or somebody said so.', null=True)),
            ],
            options={
                'db_table': 'chrono_alert',
                'ordering': ['-last_at'],
                'indexes': [models.Index(fields=['tenant', 'last_at'], name='chrono_alert_tenant'), models.Index(fields=['last_at'], name='chrono_alert_age')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('closed_at__isnull', True)), fields=('kind', 'tenant', 'subject'), name='chrono_alert_open')],
            },
        ),
        migrations.CreateModel(
            name='ApiKey',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('tenant', models.CharField(max_length=63)),
                ('name', models.CharField(blank=True, db_default='', default='', max_length=255)),
                ('prefix', models.CharField(help_text='First part of the key, by which it is found.', max_length=16, unique=True)),
                ('secret_hash', models.CharField(editable=False, max_length=128)),
                ('scopes', models.CharField(db_default='read', default='read', help_text='Of read, write, operate, with spaces between.', max_length=100)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), default=django.utils.timezone.now, editable=False)),
                ('created_by', models.CharField(blank=True, db_default='', default='', editable=False, max_length=255)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
                ('last_used_at', models.DateTimeField(blank=True, editable=False, null=True)),
            ],
            options={
                'verbose_name': 'API key',
                'db_table': 'chrono_api_key',
                'ordering': ['tenant', 'id'],
                'indexes': [models.Index(fields=['tenant'], name='chrono_api_key_tenant')],
            },
        ),
        migrations.CreateModel(
            name='Rollup',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('tenant', models.CharField(max_length=63)),
                ('span', models.CharField(choices=[('minute', 'minute'), ('hour', 'hour'), ('day', 'day')], max_length=8)),
                ('start', models.DateTimeField()),
                ('started', models.BigIntegerField(db_default=0, default=0)),
                ('succeeded', models.BigIntegerField(db_default=0, default=0)),
                ('failed', models.BigIntegerField(db_default=0, default=0)),
                ('dead', models.BigIntegerField(db_default=0, default=0)),
                ('skipped', models.BigIntegerField(db_default=0, default=0)),
                ('cancelled', models.BigIntegerField(db_default=0, default=0)),
                ('expired', models.BigIntegerField(db_default=0, default=0)),
                ('missed', models.BigIntegerField(db_default=0, default=0, help_text='Occurrences, not rows.')),
                ('deliveries', models.BigIntegerField(db_default=0, default=0)),
                ('duplicates', models.BigIntegerField(db_default=0, default=0, help_text='Deliveries beyond the first of an execution.')),
                ('capped_us', models.BigIntegerField(db_default=0, default=0, help_text='Time for which its cap held back work of the tenant.')),
                ('reaps', models.BigIntegerField(db_default=0, default=0, help_text='Leases that ran out.')),
                ('lateness_max_us', models.BigIntegerField(db_default=0, default=0)),
                ('lateness', models.TextField(blank=True, db_default='', default='', help_text='Histogram: due to started.')),
                ('publish_lateness', models.TextField(blank=True, db_default='', default='', help_text='Histogram: due to published.')),
                ('duration', models.TextField(blank=True, db_default='', default='', help_text='Histogram: started to finished.')),
            ],
            options={
                'db_table': 'chrono_rollup',
                'permissions': [('view_dashboard', 'Can see the dashboard')],
                'ordering': ['tenant', 'span', 'start'],
                'indexes': [models.Index(fields=['span', 'start'], name='chrono_rollup_start')],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'span', 'start'), name='chrono_rollup_key')],
            },
        ),
        migrations.CreateModel(
            name='StoredAnswer',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('tenant', models.CharField(max_length=63)),
                ('key', models.CharField(max_length=255)),
                ('fingerprint', models.CharField(help_text='Of method, path and body: another request is refused.', max_length=64)),
                ('status', models.PositiveSmallIntegerField(db_default=0, default=0, help_text='0 while the first one is carried out.')),
                ('body', models.TextField(blank=True, db_default='', default='')),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), default=django.utils.timezone.now)),
            ],
            options={
                'db_table': 'chrono_stored_answer',
                'indexes': [models.Index(fields=['created_at'], name='chrono_stored_answer_age')],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'key'), name='chrono_stored_answer_key')],
            },
        ),
        migrations.AddIndex(
            model_name='execution',
            index=models.Index(condition=models.Q(('state__in', ('succeeded', 'failed', 'dead', 'skipped', 'cancelled', 'expired', 'missed'))), fields=['scheduled_at'], name='chrono_execution_newest'),
        ),
    ]
