/* Makes unfold and htmx run under a Content-Security-Policy without unsafe-eval and unsafe-inline. Alpine's CSP
   build (admin_ui/vendored) evaluates only simple expressions without globals; the others are replaced here. */
(() => {
  Object.assign(htmx.config, { allowEval: false, includeIndicatorStyles: false, attributesToSettle: ['class'] })

  /* Expressions in unfold's templates, and their replacements. */
  const REPLACEMENTS = {
    "sidebarDesktopOpen = !sidebarDesktopOpen; localStorage.setItem('sidebarDesktopOpen', sidebarDesktopOpen ? '1' : '0');":
      'sidebarDesktopOpen = !sidebarDesktopOpen',
    'openSearchResults = true; currentIndex = 0': '$strict.beginSearch($data)',
    "openSearchResults = false; if ($refs.searchInput.value === '') { $refs.searchInput.blur() } else { $refs.searchInput.value = '' }":
      '$strict.endSearch($data, $refs.searchInput)',
    'if (!$event.metaKey && !$event.ctrlKey) selectItem(false, false)':
      '!$event.metaKey && !$event.ctrlKey && selectItem(false, false)',
    'if (!$event.metaKey && !$event.ctrlKey) selectItem(true, false)':
      '!$event.metaKey && !$event.ctrlKey && selectItem(true, false)',
    "activeTab && activeTab !== 'general' ? window.location.pathname + window.location.search + '#' + activeTab : window.location.pathname + window.location.search":
      '$strict.address(activeTab)',
    "'width: ' + changeListWidth + 'px'": "{width: changeListWidth + 'px'}"
  }
  const SIDEBAR = 'sidebarDesktopOpen'
  const body = () => ({
    activeTab: '',
    sidebarMobileOpen: false,
    sidebarDesktopOpen: localStorage.getItem(SIDEBAR) !== '0',
    init() {
      this.activeTab = getCurrentTab() || document.body.dataset.firstTab || ''
      this.$watch(SIDEBAR, open => localStorage.setItem(SIDEBAR, open ? '1' : '0'))
    }
  })
  const strict = () => ({
    beginSearch(data) { Object.assign(data, { openSearchResults: true, currentIndex: 0 }) },
    endSearch(data, input) {
      data.openSearchResults = false
      if (input.value === '') input.blur()
      else input.value = ''
    },
    address: tab => location.pathname + location.search + (tab && tab !== 'general' ? `#${tab}` : '')
  })

  const rewrite = root => {
    for (const element of [root, ...root.querySelectorAll('*')]) {
      for (const { name, value } of [...element.attributes]) {
        if (name.startsWith('x-') && REPLACEMENTS[value.trim()]) element.setAttribute(name, REPLACEMENTS[value.trim()])
      }
    }
  }

  document.addEventListener('alpine:init', () => {
    const first = /activeTab: '([^']*)'/.exec(document.body.getAttribute('x-data') ?? '')
    document.body.dataset.firstTab = first ? first[1] : ''
    document.body.setAttribute('x-data', 'body')
    document.body.removeAttribute('x-init')
    rewrite(document.documentElement)
    Alpine.data('body', body)
    for (const name of ['theme', 'searchForm', 'searchDropdown', 'searchCommand']) {
      Alpine.data(name, (...given) => window[name](...given))
    }
    Alpine.magic('strict', strict)
  })
  document.addEventListener('htmx:beforeProcessNode', event => rewrite(event.detail.elt ?? event.target))

  /* Positions on a timeline: `data-left` and `data-width`, in percent. */
  const place = root => {
    for (const mark of root.querySelectorAll('[data-left]')) {
      mark.style.left = `${mark.dataset.left}%`
      if ('width' in mark.dataset) mark.style.width = `${mark.dataset.width}%`
    }
  }
  document.addEventListener('DOMContentLoaded', () => place(document))
  document.addEventListener('htmx:load', event => place(event.detail.elt.parentElement ?? document))
  /* A live update keeps open what the reader has opened, and the position in what scrolls. */
  let opened = [], scrolled = []
  document.addEventListener('htmx:beforeSwap', () => {
    opened = [...document.querySelectorAll('details[open][id]')].map(part => part.id)
    scrolled = [...document.querySelectorAll('[data-keeps-scroll]')].map(part => [part.id, part.scrollTop])
  })
  document.addEventListener('htmx:load', () => {
    for (const id of opened) document.getElementById(id)?.setAttribute('open', '')
    for (const [id, top] of scrolled) document.getElementById(id)?.scrollTo(0, top)
  })
  /* Trigger conditions and handlers in attributes would be inline code: `data-fresh` reloads every two seconds,
     and `data-on-error-show` names the element to show when a request fails. */
  setInterval(() => { if (!document.hidden) for (const part of document.querySelectorAll('[data-fresh]')) htmx.trigger(part, 'stale') }, 2000)
  for (const name of ['htmx:sendError', 'htmx:responseError']) {
    document.addEventListener(name, event => {
      if ('fresh' in event.target.dataset) event.target.classList.add('stale')
      const { onErrorShow } = event.target.dataset
      if (onErrorShow) document.getElementById(onErrorShow).hidden = false
    })
  }
  document.addEventListener('htmx:afterSwap', event => {
    const opener = event.detail.target.id === 'modal-content' && document.getElementById('content-main')
    if (opener && 'opensModal' in opener.dataset) Alpine.$data(opener).openModal = true
  })
})()
