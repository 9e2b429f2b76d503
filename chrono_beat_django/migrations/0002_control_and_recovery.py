"""What prompt control, dead letters and pending voids need beside the first tables."""

import django.db.models.functions.datetime
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('chrono_beat', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='PendingVoid',
            fields=[
                ('job_id', models.UUIDField(primary_key=True, serialize=False)),
                ('tenant', models.CharField(max_length=63)),
                ('partition', models.IntegerField(db_default=0, default=0)),
                ('version', models.IntegerField()),
                ('told', models.BooleanField(db_default=False, default=False)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), default=django.utils.timezone.now)),
            ],
            options={
                'db_table': 'chrono_pending_void',
                'ordering': ['created_at'],
            },
        ),
        migrations.RemoveField(
            model_name='tenant',
            name='pause_count',
        ),
        migrations.AddField(
            model_name='execution',
            name='handled_as',
            field=models.CharField(blank=True, choices=[('replayed', 'replayed'), ('discarded', 'discarded')], db_default='', default='', max_length=16),
        ),
        migrations.AddField(
            model_name='execution',
            name='handled_at',
            field=models.DateTimeField(blank=True, help_text='When a dead letter was replayed or discarded.', null=True),
        ),
        migrations.AddField(
            model_name='job',
            name='flagged_reason',
            field=models.TextField(blank=True, db_default='', default='', editable=False, help_text='What is likely to go wrong at the next run; it stays planned.'),
        ),
        migrations.AddField(
            model_name='job',
            name='paused_at',
            field=models.DateTimeField(blank=True, editable=False, help_text='Since when it is paused; empty where it is not.', null=True),
        ),
        migrations.AddField(
            model_name='job',
            name='plan_version',
            field=models.IntegerField(db_default=1, default=1, editable=False, help_text='Version of the last edit that planned anew: older rows are not carried over.'),
        ),
        migrations.AddField(
            model_name='tenant',
            name='paused_at',
            field=models.DateTimeField(blank=True, editable=False, help_text='Since when it is paused; set by the database, empty where it is not.', null=True),
        ),
        migrations.AlterField(
            model_name='execution',
            name='kind',
            field=models.CharField(choices=[('schedule', 'schedule'), ('manual', 'manual'), ('backfill', 'backfill'), ('retry', 'retry'), ('replay', 'replay')], db_default='schedule', default='schedule', max_length=16),
        ),
        migrations.AddIndex(
            model_name='execution',
            index=models.Index(condition=models.Q(('handled_at__isnull', True), ('state', 'dead')), fields=['tenant', 'finished_at'], name='chrono_execution_letters'),
        ),
        migrations.AddIndex(
            model_name='execution',
            index=models.Index(condition=models.Q(('cancel_requested_at__isnull', False), ('state__in', ('scheduled', 'queued', 'running'))), fields=['cancel_requested_at'], name='chrono_execution_cancel'),
        ),
    ]
