"""A middleware that logs everybody in, since a browser started from a command line has no cookie; it counts pages."""
from django.contrib.auth.models import User

seen: list[str] = []


def let_in(get_response):
    def answer(request):
        seen.append(request.path)
        request.user, _ = User.objects.get_or_create(username="ada", defaults={"is_staff": True, "is_superuser": True})
        return get_response(request)
    return answer
