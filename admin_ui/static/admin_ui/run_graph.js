/* Draws the graph of a run: dagre lays the definition out once, and each live update colours its boxes. Texts are
   set as text, never as markup. */
(() => {
  const SPACE = 'http://www.w3.org/2000/svg'
  const WIDTH = 168, HEIGHT = 46, STATES = ['pending', 'running', 'completed', 'failed', 'skipped', 'cancelled']
  const SIGNS = ['', '▶', '✓', '✗', '↷', '■']
  const MANY = 250, LABEL = 22
  const frame = document.getElementById('run-graph')
  const shape = read('run-graph-shape')
  if (!frame || !shape || !window.dagre) return

  function read(id) {
    const element = document.getElementById(id)
    return element && JSON.parse(element.textContent)
  }
  function make(name, attributes, parent) {
    const element = document.createElementNS(SPACE, name)
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value)
    parent?.append(element)
    return element
  }
  const short = text => text.length > LABEL ? `${text.slice(0, LABEL - 1)}…` : text

  function layout() {
    const graph = new dagre.graphlib.Graph()
    graph.setGraph({
      rankdir: innerWidth < 700 ? 'TB' : 'LR', nodesep: 14, ranksep: 44, marginx: 8, marginy: 8,
      ranker: shape.nodes.length > MANY ? 'longest-path' : 'network-simplex'
    })
    graph.setDefaultEdgeLabel(() => ({}))
    shape.nodes.forEach((_, place) => graph.setNode(String(place), { width: WIDTH, height: HEIGHT }))
    for (const [from, to] of shape.edges) graph.setEdge(String(from), String(to))
    dagre.layout(graph)
    return graph
  }

  let graph
  try {
    graph = layout()
  } catch {
    return // the table says the same
  }
  const size = graph.graph()
  const svg = make('svg', { viewBox: `0 0 ${size.width} ${size.height}`, 'aria-hidden': 'true' })
  const tips = make('defs', {}, svg)
  const tip = make('marker', { id: 'graph-tip', viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: 'auto' }, tips)
  make('path', { d: 'M0 0 8 4 0 8Z', class: 'graph-tip' }, tip)
  const lines = make('g', { class: 'graph-edges' }, svg)
  for (const edge of graph.edges()) {
    const [first, ...rest] = graph.edge(edge).points
    make('path', { d: `M${first.x} ${first.y}${rest.map(one => `L${one.x} ${one.y}`).join('')}`, 'marker-end': 'url(#graph-tip)' }, lines)
  }
  const boxes = shape.nodes.map(([key, kind, detail], place) => {
    const { x, y } = graph.node(String(place))
    const link = make('a', { href: `${frame.dataset.nodePage}&base=${encodeURIComponent(key)}`, tabindex: '-1' }, svg)
    const box = make('g', { transform: `translate(${x - WIDTH / 2} ${y - HEIGHT / 2})` }, link)
    make('rect', { width: WIDTH, height: HEIGHT, rx: 6 }, box)
    const title = make('title', {}, box)
    make('text', { x: 10, y: 18, class: 'graph-name' }, box).textContent = short(key)
    const sign = make('text', { x: WIDTH - 10, y: 18, class: 'graph-sign', 'text-anchor': 'end' }, box)
    const text = make('text', { x: 10, y: 33, class: 'graph-kind' }, box)
    const bars = ['completed', 'failed', 'running'].map(name => make('rect', { y: HEIGHT - 6, height: 4, width: 0, class: `graph-bar graph-bar-${name}` }, box))
    return { box, title, sign, text, bars, key, kind, detail }
  })
  const tools = document.querySelector('.graph-tools')
  frame.replaceChildren(svg)
  if (tools) tools.hidden = false

  function colour() {
    const live = read('run-graph-live')
    if (!live) return
    boxes.forEach(({ box, title, sign, text, bars, key, kind, detail }, place) => {
      const [state, total, completed, failed, running] = live[place] ?? [0]
      box.setAttribute('class', `graph-node graph-${STATES[state]}${kind === 'workflow' ? ' graph-sub' : ''}`)
      sign.textContent = SIGNS[state]
      let what = detail ? `${kind} ${detail}` : kind
      if (total !== undefined) {
        what = `${completed + failed} of ${total} · ${detail || kind}`
        const room = WIDTH - 20
        let left = 10
        for (const [bar, count] of [[bars[0], completed], [bars[1], failed], [bars[2], running]]) {
          const width = total ? room * count / total : 0
          bar.setAttribute('x', left)
          bar.setAttribute('width', width)
          left += width
        }
      }
      text.textContent = short(what)
      title.textContent = `${key}: ${STATES[state]}, ${what}`
    })
  }

  /* The scale: the graph fits the frame, unless it would become too small to read. */
  let scale = 1
  function zoom(value) {
    scale = Math.min(Math.max(value, 0.05), 2)
    svg.setAttribute('width', size.width * scale)
    svg.setAttribute('height', size.height * scale)
  }
  const fit = least => zoom(Math.max(Math.min((frame.clientWidth - 4) / size.width, 1), least))
  tools?.addEventListener('click', event => {
    const asked = event.target.closest('[data-graph]')?.dataset.graph
    if (asked === 'in') zoom(scale * 1.25)
    if (asked === 'out') zoom(scale / 1.25)
    if (asked === 'fit') fit(0)
  })
  colour()
  fit(0.55)
  document.addEventListener('htmx:load', event => { if (event.detail.elt.id === 'run-live') colour() })
  document.addEventListener('htmx:load', () => {
    const live = document.getElementById('run-live'), spoken = document.getElementById('run-spoken')
    if (live && spoken && spoken.textContent !== live.dataset.spoken) spoken.textContent = live.dataset.spoken
  })
})()
